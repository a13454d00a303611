from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from repro.gpipe.mesh import PipelineMesh
from tests.helpers.ranks import Pools


def describe(rank: int, world_size: int, num_stages: int, replicas: int) -> dict[str, Any]:
    mesh = PipelineMesh(num_stages, replicas)
    try:
        return {
            "place": (mesh.replica, mesh.pipeline_rank, mesh.reads_data),
            "ranks": [mesh.rank_of(stage) for stage in range(num_stages)],
            "groups": [
                dist.get_process_group_ranks(group)
                for group in (mesh.channel("activation", 0, 1), mesh.channel("gradient", 1, 0), mesh.control, mesh.data)
            ],
            "sum": mesh.sum_over_replicas(torch.tensor(float(rank))).item(),
            "names": mesh.device_mesh.mesh_dim_names,
        }
    finally:
        mesh.close()
        mesh.close()


def test_two_replicas_of_a_pipeline_of_two(pools: Pools) -> None:
    for rank, seen in enumerate(pools(4).run(describe, 2, 2)):
        replica, stage = divmod(rank, 2)
        own, column = [2 * replica, 2 * replica + 1], [stage, stage + 2]
        assert seen["place"] == (replica, stage, stage == 0)
        assert seen["ranks"] == own
        assert seen["groups"] == [own, own, own, column]
        assert seen["sum"] == sum(column)
        assert seen["names"] == ("data", "pipeline")


def test_one_replica_sums_nothing(pools: Pools) -> None:
    for rank, seen in enumerate(pools(3).run(describe, 3, 1)):
        assert seen["sum"] == rank
        assert seen["groups"] == [[0, 1, 2]] * 3 + [[rank]]
