"""The ranks that distributed tests run on: failures are shown, nothing hangs, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.helpers.ranks import Pools, RankError, RankTimeout, fresh_ranks

ROOT = Path(__file__).parents[2]
UNDER_WAY = 5.0
"""Seconds after which a rank has long called the function that it was given, also on a busy machine."""


def all_reduce(rank: int, world_size: int, value: float) -> tuple[float, int, str, int]:
    tensor = torch.tensor(value + rank)
    dist.all_reduce(tensor)
    return tensor.item(), torch.get_num_threads(), dist.get_backend(), int(os.environ["RANK"])


def fail_on_one(rank: int, world_size: int, failing: int) -> None:
    if rank == failing:
        raise KeyError("the story of this rank")
    dist.barrier()


def return_unpicklable(rank: int, world_size: int) -> object:
    return lambda: rank


def receive_from_nobody(rank: int, world_size: int) -> None:
    if rank == 1:
        dist.recv(torch.empty(1), src=0)


def receive_from_each_other(rank: int, world_size: int) -> None:
    dist.recv(torch.empty(1), src=1 - rank)


def be_killed(rank: int, world_size: int) -> int:
    if rank == 1:
        print("last words", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)
    return rank


def sleep_with_child(rank: int, world_size: int, path: str) -> None:
    child = subprocess.Popen(["sleep", "600"])
    Path(path, str(rank)).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def leave_child(rank: int, world_size: int) -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(processes: list[int], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, processes))


def test_every_rank_runs_in_one_group_and_stays_up(pools: Pools) -> None:
    pool = pools(3)
    assert pool.run(all_reduce, 1.0) == [(6.0, 1, "gloo", rank) for rank in range(3)]
    processes = pool.process_ids()
    assert pool.run(all_reduce, 2.0) == [(9.0, 1, "gloo", rank) for rank in range(3)]
    assert pool.process_ids() == processes


def test_the_first_failure_is_shown_with_rank_and_traceback_and_the_pool_works_again(pools: Pools) -> None:
    pool = pools(2)
    pool.run(all_reduce, 0.0)
    before = pool.process_ids()
    with pytest.raises(RankError, match=r"rank 1 of 2 failed in .*fail_on_one") as caught:
        pool.run(fail_on_one, 1)
    assert caught.value.rank == 1
    assert caught.value.type_name == "KeyError"
    assert 'raise KeyError("the story of this rank")' in str(caught.value)
    assert gone(before)
    assert pool.run(all_reduce, 0.0)[0][0] == 1.0


def test_a_result_that_cannot_be_sent_is_a_failure(pools: Pools) -> None:
    with pytest.raises(RankError, match="return_unpicklable"):
        pools(2).run(return_unpicklable)


def test_a_hang_ends_and_shows_what_every_rank_was_doing(pools: Pools) -> None:
    pool = pools(2)
    start = time.monotonic()
    with pytest.raises(RankTimeout, match=rf"not over after {UNDER_WAY:g} s on ranks \[1\] of 2") as caught:
        pool.run(receive_from_nobody, timeout=UNDER_WAY)
    assert time.monotonic() - start < 20
    assert "in receive_from_nobody" in caught.value.rank_traceback
    assert "rank 0 (done)" in str(caught.value)
    assert pool.run(all_reduce, 0.0)[1][0] == 1.0


def test_a_killed_rank_is_named(pools: Pools) -> None:
    with pytest.raises(RankError, match=r"rank 1 of 2(.|\n)*exit code -9(.|\n)*last words"):
        pools(2).run(be_killed)


def test_fresh_ranks_tell_how_each_ended() -> None:
    first, second = fresh_ranks(2, be_killed)
    assert (first.exit_code, first.result, first.timed_out) == (0, 0, False)
    assert (second.exit_code, second.result, second.timed_out) == (-signal.SIGKILL, None, False)
    assert "last words" in second.stderr


def test_a_fresh_rank_that_raises_exits_with_one_and_its_traceback() -> None:
    ends = fresh_ranks(2, fail_on_one, 0, timeout=20)
    assert ends[0].exit_code == 1
    assert 'raise KeyError("the story of this rank")' in ends[0].stderr
    assert ends[1].exit_code != 0


def test_a_fresh_rank_that_hangs_is_killed_with_its_stacks() -> None:
    for end in fresh_ranks(2, receive_from_each_other, timeout=UNDER_WAY):
        assert (end.exit_code, end.timed_out) == (-signal.SIGKILL, True)
        assert "receive_from_each_other" in end.stderr


def test_what_a_rank_started_ends_with_it() -> None:
    assert gone([end.result for end in fresh_ranks(2, leave_child)])


def test_ranks_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    script = (
        "from tests.helpers.ranks import Pool\n"
        "from tests.helpers.test_ranks import sleep_with_child\n"
        f"Pool(2).run(sleep_with_child, {str(tmp_path)!r})\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    try:
        end = time.monotonic() + 60
        files = [tmp_path / "0", tmp_path / "1"]
        while not all(file.exists() and file.read_text() for file in files) and time.monotonic() < end:
            time.sleep(0.05)
        processes = [int(process) for file in files for process in file.read_text().split()]
        assert len(processes) == 4
    finally:
        parent.kill()
        parent.wait()
    assert gone(processes)
