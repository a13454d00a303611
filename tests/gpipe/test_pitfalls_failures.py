"""Order, hangs and errors: the first failure reaches every rank within seconds, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.errors import UserError
from repro.gpipe.engine import Engine
from repro.gpipe.failure import StageError
from repro.gpipe.mesh import PipelineMesh
from repro.schedules import ScheduleError
from tests.helpers import oracle
from tests.helpers.models import MODELS, WIDTH, cross_entropy
from tests.helpers.pipelines import TOLERANCE, Cell, make_engine, own_layers
from tests.helpers.ranks import Pools, RankEnd, fresh_ranks

SECONDS = 10.0


class Deed(nn.Module):
    """Passes its input on; does something to the process on the nth call or in the nth backward."""

    def __init__(self, deed: str, action: str, number: int) -> None:
        super().__init__()
        self.deed = deed
        self.action = action
        self.number = number
        self.calls = {"forward": 0, "backward": 0}

    def forward(self, value: Tensor) -> Tensor:
        self._count("forward")
        if value.requires_grad and self.action == "backward":
            value = value * 1.0
            value.register_hook(lambda gradient: self._count("backward"))
        return value

    def _count(self, action: str) -> None:
        self.calls[action] += 1
        if action == self.action and self.calls[action] == self.number:
            do(self.deed)


def do(deed: str) -> None:
    if deed == "raise":
        raise KeyError("the story of this layer")
    if deed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "exit":
        os._exit(3)
    if deed == "interrupt":
        # Ignored from the start where the tests run in the background of a shell.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)


def failing_loss(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    if (targets == 3).any():
        raise ZeroDivisionError("the story of this loss")
    return cross_entropy(outputs, targets)


def train_until_failure(
    rank: int, world_size: int, stage: int, deed: str, action: str, number: int, replicas: int = 1
) -> None:
    """Trains on and on; in the last replica something happens on ``stage``."""
    num_stages = world_size // replicas
    mesh = PipelineMesh(num_stages, replicas)
    spec = MODELS["mlp"]
    layers: list[nn.Module] = [nn.Linear(WIDTH, WIDTH).double() for _ in range(num_stages)]
    if action != "loss" and mesh.replica == replicas - 1:
        layers[stage] = nn.Sequential(layers[stage], Deed(deed, action, number))
    engine = Engine(
        dict(enumerate(layers)),
        [1] * num_stages,
        num_micro_batches=4,
        loss=failing_loss if action == "loss" else cross_entropy,
        mesh=mesh,
    )
    # With remat each micro-batch is a forward twice: in the first step F of micro-batch 2 is the third call.
    for counter in range(200):
        inputs, targets = spec.batch(8, counter)
        targets = torch.arange(8) // 2 if action == "loss" else targets
        engine.train_step(*((inputs, targets) if mesh.reads_data else (None, None)), batch_counter=counter)


def told(end: RankEnd, *words: str) -> None:
    missing = [word for word in words if word not in end.stderr]
    assert not missing, f"{missing} not in:\n{end.stderr}"
    assert not end.timed_out, end.stderr


def in_time(ends: list[RankEnd]) -> None:
    """The first rank to end is the one at fault, or ends at once after it."""
    times = [end.seconds for end in ends]
    assert max(times) - min(times) < SECONDS, times


def on_each_stage(*arguments: Any) -> list[list[RankEnd]]:
    """``train_until_failure`` once per stage at fault, all three at the same time: most of it is waiting."""
    with ThreadPoolExecutor() as threads:
        runs = [
            threads.submit(fresh_ranks, 3, train_until_failure, stage, *arguments, timeout=30) for stage in range(3)
        ]
        return [run.result() for run in runs]


@pytest.mark.parametrize(
    ("action", "number", "what"),
    [
        ("forward", 3, "micro-batch 2, forward"),
        ("forward", 5, "micro-batch 3, recompute"),
        ("backward", 2, "micro-batch 2, backward"),
    ],
)
def test_an_exception_in_a_stage_is_told_on_every_rank(action: str, number: int, what: str) -> None:
    """The others waited for the process-group timeout (half an hour) and then blamed the network."""
    for stage, ends in enumerate(on_each_stage("raise", action, number)):
        in_time(ends)
        for rank, end in enumerate(ends):
            assert end.exit_code == 1, end.stderr
            told(end, f"rank {stage}, stage {stage}, {what}", "KeyError", "the story of this layer")
            # The rank at fault shows where; the others do not repeat its traceback.
            assert ("in _count" in end.stderr) == (rank == stage)


def test_an_exception_in_the_loss_is_told_on_every_rank() -> None:
    ends = fresh_ranks(3, train_until_failure, 2, "raise", "loss", 0, timeout=30)
    in_time(ends)
    for end in ends:
        assert end.exit_code == 1
        told(end, "rank 2, stage 2, micro-batch 3, forward", "ZeroDivisionError: the story of this loss")


@pytest.mark.parametrize(
    ("deed", "action", "number"),
    [("kill", "forward", 1), ("kill", "forward", 19), ("kill", "backward", 14), ("exit", "forward", 19)],
)
def test_a_killed_rank_ends_the_others(deed: str, action: str, number: int) -> None:
    """Rank 0 holds the store, so its death must be noticed without it."""
    for stage, ends in enumerate(on_each_stage(deed, action, number)):
        in_time(ends)
        assert ends[stage].exit_code == (-signal.SIGKILL if deed == "kill" else 3)
        for rank, end in enumerate(ends):
            if rank != stage:
                assert end.exit_code == 1, end.stderr
                told(end, f"rank {stage}")


@pytest.mark.parametrize("deed", ["raise", "kill"])
def test_a_failure_in_one_replica_ends_the_others(deed: str) -> None:
    """The ranks of another replica talk to the failing one only once a step, in the reduction."""
    ends = fresh_ranks(4, train_until_failure, 1, deed, "forward", 3, 2, timeout=30)
    in_time(ends)
    for rank, end in enumerate(ends):
        if rank != 3 or deed == "raise":
            assert end.exit_code == 1, end.stderr
            told(end, "rank 3")


def test_an_interrupt_of_one_rank_ends_all() -> None:
    """Ctrl-C reaches one rank only where the others sit in another session or on another machine."""
    ends = fresh_ranks(3, train_until_failure, 1, "interrupt", "forward", 7, timeout=30)
    in_time(ends)
    for end in ends:
        assert end.exit_code != 0
        told(end, "KeyboardInterrupt")


def raise_between_steps(rank: int, world_size: int) -> None:
    spec = MODELS["mlp"]
    engine = make_engine(Cell("mlp", world_size, 4), spec.layers(), PipelineMesh(world_size))

    def batches() -> Any:
        yield spec.batch(8, 0)
        raise OSError("the story of this data set")

    data = batches()
    for counter in range(3):
        engine.train_step(*(next(data) if rank == 0 else (None, None)), batch_counter=counter)


def test_a_rank_that_raises_outside_of_a_step_ends_the_others() -> None:
    """An exception in the data loader: the reading rank is gone, the others wait for its word."""
    ends = fresh_ranks(3, raise_between_steps, timeout=30)
    in_time(ends)
    for end in ends:
        assert end.exit_code == 1
        told(end, "rank 0" if end is not ends[0] else "the story of this data set")


def test_a_local_failure_names_the_place_and_the_engine_goes_on() -> None:
    """After an exception in the middle of a step nothing of it may leak into the next."""
    spec = MODELS["batch_norm_2d"]
    layers = spec.layers()
    engine = make_engine(Cell("batch_norm_2d", 3, 4), layers)
    own = own_layers(engine)
    inputs, targets = spec.batch(8, 0)
    before = {name: buffer.clone() for name, buffer in own.named_buffers()}
    deed = Deed("raise", "forward", 3)
    handle = layers[4].register_forward_pre_hook(lambda module, args: (deed(args[0]),))
    own[str(6)].weight.grad = torch.ones_like(own[str(6)].weight)
    with pytest.raises(StageError, match=r"stage 1, micro-batch 2, forward: KeyError: .*story") as caught:
        engine.train_step(inputs, targets, batch_counter=0)
    assert isinstance(caught.value.__cause__, KeyError)
    handle.remove()
    for name, buffer in own.named_buffers():
        assert torch.equal(buffer, before[name]), name
    # What was accumulated before is still there, and nothing of the failed step is.
    assert torch.equal(own[str(6)].weight.grad, torch.ones_like(own[str(6)].weight))
    assert own["0"].weight.grad is None
    own.zero_grad()
    engine.train_step(inputs, targets, batch_counter=0).accumulate()
    reference = oracle.pooled_step(spec.layers(), inputs, targets, spec.loss, num_micro_batches=4)
    for name, parameter in own.named_parameters():
        torch.testing.assert_close(parameter.grad, reference.gradients[name], rtol=0, atol=TOLERANCE)
    for name, buffer in own.named_buffers():
        torch.testing.assert_close(buffer, reference.buffers[name], rtol=0, atol=TOLERANCE)


def train_and_validate_with_slow_ranks(rank: int, world_size: int) -> tuple[list[float], list[float], list[int]]:
    """Losses, evaluated losses, and after each engine the threads and groups that are left more than before."""
    spec = MODELS["mlp"]
    losses, evaluated, left = [], [], []
    chance = random.Random(rank)
    threads, groups = threading.active_count(), len(dist.distributed_c10d._world.pg_map)
    for _ in range(3):
        mesh = PipelineMesh(world_size)
        engine = make_engine(Cell("mlp", world_size, 4), spec.layers(), mesh)
        own = own_layers(engine)
        for layer in own.values():
            layer.register_forward_pre_hook(lambda module, args: time.sleep(chance.choice((0.0, 0.0, 0.0, 0.003))))
        for counter in range(4):
            batch = spec.batch((8, 7, 3, 1)[counter], counter) if rank == 0 else (None, None)
            own.eval()
            evaluated.append(engine.evaluate(*batch).loss)
            own.train()
            losses.append(engine.train_step(*batch, batch_counter=counter).loss)
        engine.close()
        mesh.close()
        deadline = time.monotonic() + 3
        while threading.active_count() > threads and time.monotonic() < deadline:
            time.sleep(0.01)
        left.append(threading.active_count() - threads + len(dist.distributed_c10d._world.pg_map) - groups)
    return losses, evaluated, left


def test_validation_first_then_in_turns_on_ranks_that_are_slow_at_random(pools: Pools) -> None:
    """Steps of different kinds follow each other at once; a fast rank is a step ahead of a slow one."""
    spec = MODELS["mlp"]
    wanted = []
    for counter, rows in enumerate((8, 7, 3, 1)):
        reference = oracle.whole_batch_step(spec.layers(), *spec.batch(rows, counter), spec.loss)
        wanted.append(reference.loss.item())
    for losses, evaluated, _ in pools(3).run(train_and_validate_with_slow_ranks):
        assert losses == pytest.approx(wanted * 3, abs=TOLERANCE)
        assert evaluated == pytest.approx(wanted * 3, abs=TOLERANCE)


def test_engines_that_follow_each_other_leave_no_thread_and_no_group(pools: Pools) -> None:
    """Ten fits in one process ran out of threads and ports."""
    for _, _, left in pools(3).run(train_and_validate_with_slow_ranks):
        assert left[-1] == left[0], left
        assert left[0] <= 0 or left[1:] == [left[0]] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": [3, 3]}, r"partition"),
        ({"partition": [7, 0]}, r"partition"),
        ({"partition": []}, r"num_stages=0|partition"),
        ({"partition": [4, 4]}, r"partition|layer 7"),
        ({"num_micro_batches": 0}, r"num_micro_batches=0"),
        ({"num_micro_batches": -3}, r"num_micro_batches=-3"),
        ({"schedule": "gpip"}, r"unknown schedule='gpip'.*gpipe"),
        ({"remat": "alway"}, r"unknown remat='alway'.*always"),
        ({"num_virtual_stages": 0}, r"num_virtual_stages=0"),
        ({"num_virtual_stages": 3}, r"num_virtual_stages=3"),
    ],
)
def test_numbers_that_cannot_be_are_errors_before_any_work(options: dict[str, Any], message: str) -> None:
    layers = dict(enumerate(MODELS["mlp"].layers()))
    arguments: dict[str, Any] = {"partition": [4, 3], "num_micro_batches": 4, "loss": cross_entropy} | options
    partition = arguments.pop("partition")
    with pytest.raises((UserError, ScheduleError), match=message):
        Engine(layers, partition, **arguments)


def too_many_ranks(rank: int, world_size: int) -> str:
    try:
        PipelineMesh(2, 2)
    except UserError as error:
        return str(error)
    return ""


def test_a_mesh_of_the_wrong_size_names_both_numbers(pools: Pools) -> None:
    for message in pools(3).run(too_many_ranks):
        assert "num_stages=2 x data_parallel_size=2 needs 4 processes, but there are 3" in message
