from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from repro.experiments.sweeps.ranks import Job, JobError, Tell, run_jobs


def environment(rank: int, tell: Tell, word: str) -> tuple[int, str, str | None]:
    tell(0.5, f"rank {rank}")
    print("printed", word)
    return rank, word, os.environ.get("WORLD_SIZE")


def raise_on(rank: int, tell: Tell, failing: int) -> None:
    if rank == failing:
        raise ValueError("the loader\nhas no rows")
    time.sleep(300)


def leave(rank: int, tell: Tell) -> None:
    os._exit(7)


def sleep_with_child(rank: int, tell: Tell, path: str) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(300)
        os._exit(0)
    Path(path).write_text(str(child))
    time.sleep(300)


def ended(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_jobs_run_side_by_side_and_tell_their_progress(tmp_path: Path) -> None:
    jobs = [
        Job("pair", environment, ("a",), tmp_path / "logs" / "pair.log", world_size=2, timeout=60),
        Job("alone", environment, ("b",), tmp_path / "logs" / "alone.log", timeout=60),
    ]
    told: list[tuple[str, float, str]] = []
    results = run_jobs(jobs, lambda job, share, words: told.append((job.name, share, words)))
    assert results == [[(0, "a", "2"), (1, "a", "2")], [(0, "b", None)]]
    assert sorted(told) == [("alone", 0.5, "rank 0"), ("pair", 0.5, "rank 0"), ("pair", 0.5, "rank 1")]
    assert (tmp_path / "logs" / "alone.log").read_text() == "printed b\n"


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_names_the_rank_and_ends_the_others(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro.experiments.sweeps.ranks.GRACE", 0.2)
    log = tmp_path / "job.log"
    with pytest.raises(JobError) as raised:
        run_jobs([Job("the pair", raise_on, (failing,), log, world_size=2, timeout=60)])
    assert str(raised.value) == (
        f"the pair failed (rank {failing} of 2): the loader has no rows; the whole log is in {log}"
    )
    assert "Traceback" in log.read_text()


def test_a_process_that_vanishes_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="exit code 7"):
        run_jobs([Job("gone", leave, (), tmp_path / "job.log", timeout=60)])


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with pytest.raises(JobError, match="not over after 3 s"):
        run_jobs([Job("slow", sleep_with_child, (str(path),), tmp_path / "job.log", timeout=3.0)])
    assert ended(int(path.read_text()))


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    def interrupt(job: Job, share: float, words: str) -> None:
        raise KeyboardInterrupt

    jobs = [
        Job("slow", sleep_with_child, (str(path),), tmp_path / "slow.log", timeout=60),
        Job("tells", wait_and_tell, (str(path),), tmp_path / "tells.log", timeout=60),
    ]
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, interrupt)
    assert ended(int(path.read_text()))


def wait_and_tell(rank: int, tell: Tell, path: str) -> None:
    while not Path(path).exists() or not Path(path).read_text():
        time.sleep(0.02)
    tell(0.1, "go")
    time.sleep(300)


def test_a_limit_holds_and_results_come_as_they_are_there(tmp_path: Path) -> None:
    jobs = [Job(name, environment, (name,), tmp_path / f"{name}.log", timeout=60) for name in ("a", "b", "c")]
    told: list[tuple[str, str]] = []
    results = run_jobs(
        jobs,
        limit=1,
        on_begin=lambda job: told.append(("begins", job.name)),
        on_result=lambda job, result: told.append((result[0][1], job.name)),
    )
    assert [result[0][1] for result in results] == ["a", "b", "c"]
    assert told == [(word, name) for name in ("a", "b", "c") for word in ("begins", name)]


def test_a_failure_that_is_heard_leaves_the_others_alone(tmp_path: Path) -> None:
    jobs = [
        Job("broken", raise_on, (0,), tmp_path / "broken.log", timeout=60),
        Job("slow", raise_on, (1,), tmp_path / "slow.log", timeout=3.0),
        Job("good", environment, ("a",), tmp_path / "good.log", timeout=60),
    ]
    failures: dict[str, str] = {}
    results = run_jobs(jobs, limit=2, on_failure=lambda job, error: failures.update({job.name: str(error)}))
    assert results == [[], [], [(0, "a", None)]]
    assert "the loader has no rows" in failures["broken"]
    assert "not over after 3 s" in failures["slow"]
