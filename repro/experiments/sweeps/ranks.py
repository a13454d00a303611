"""Runs functions on fresh processes, alone or as the ranks of one job, with progress; none outlives its caller.

All are forked from one server that has torch and lightning loaded: a cold import costs seconds on each of them. A rank
of several sees the environment that torchrun would give it.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.distributed.device_mesh",
    "torch.distributed.pipelining",
    "lightning",
    "repro.gpipe",
    "repro.tasks",
)
# How long the other ranks may take to end by themselves once one has failed.
GRACE = 12.0
HOST = "127.0.0.1"

Tell = Callable[[float, str], None]
"""Progress of a job: the share that is done, and a few words."""


class JobError(RuntimeError):
    """A process of a job failed; the message has the job, the rank and the error, and where the whole log is."""


@dataclass(frozen=True)
class Job:
    """``function(rank, tell, *arguments)`` on ``world_size`` fresh processes of one thread each.

    Attributes:
        name: for messages.
        function: at module level; it and the arguments are pickled, and what it returns.
        log: the file that gets what the processes print.
        timeout: seconds after which the job is ended as failed.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    log: Path
    world_size: int = 1
    timeout: float = 1800.0


def run_jobs(
    jobs: Sequence[Job],
    on_progress: Callable[[Job, float, str], None] | None = None,
    *,
    limit: int | None = None,
    on_begin: Callable[[Job], None] | None = None,
    on_result: Callable[[Job, list[Any]], None] | None = None,
    on_failure: Callable[[Job, JobError], None] | None = None,
) -> list[list[Any]]:
    """Runs all jobs at the same time, or ``limit`` of them; for every job what each of its ranks returned.

    ``on_begin`` is told of every job before it starts, ``on_result`` what its ranks returned as soon as they all have,
    and ``on_failure`` of a job that failed, whose result is an empty list: the others go on then.

    Raises:
        JobError: without ``on_failure`` the first failure; all processes have ended then, as they have after any other
            exception.
    """
    waiting = deque(enumerate(jobs))
    running: dict[int, _Running] = {}
    results: list[dict[int, Any]] = [{} for _ in jobs]
    places: dict[Connection, tuple[int, int]] = {}
    try:
        while waiting or places:
            while waiting and (limit is None or len(running) < limit):
                index, job = waiting.popleft()
                if on_begin is not None:
                    on_begin(job)
                running[index] = _Running(job)
                places |= {connection: (index, rank) for rank, connection in enumerate(running[index].connections)}
            left = min(running[index].deadline for index, _ in places.values()) - time.monotonic()
            ready = wait(list(places), max(0.0, left))
            if not ready:
                late = {index for index, _ in places.values() if running[index].deadline <= time.monotonic()}
                for index in late:
                    places = {connection: place for connection, place in places.items() if place[0] != index}
                    _give_up(running.pop(index), on_failure)
            for connection in ready:
                assert isinstance(connection, Connection)
                index, rank = places[connection]
                kind, *content = running[index].receive(rank)
                if kind == "progress":
                    if on_progress is not None:
                        on_progress(jobs[index], *content)
                    continue
                del places[connection]
                if kind == "result":
                    results[index][rank] = content[0]
                else:
                    running[index].note_failure(rank, *content)
                if any(place == index for place, _ in places.values()):
                    continue
                if running[index].failures:
                    results[index] = {}
                    _give_up(running.pop(index), on_failure)
                    continue
                running.pop(index).end()
                if on_result is not None:
                    on_result(jobs[index], [results[index][rank] for rank in sorted(results[index])])
        return [[result[rank] for rank in sorted(result)] for result in results]
    finally:
        for one in running.values():
            one.end()


def _give_up(one: _Running, on_failure: Callable[[Job, JobError], None] | None) -> None:
    """Ends what is left of a job that failed, and tells it."""
    one.end()
    failure = one.failure()
    if on_failure is None:
        raise failure
    on_failure(one.job, failure)


class _Running:
    """The processes of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.failures: list[tuple[int, str, str]] = []
        self.deadline = time.monotonic() + job.timeout
        self.connections: list[Connection] = []
        self._processes: list[BaseProcess] = []
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.log.write_bytes(b"")
        port = _free_port() if job.world_size > 1 else 0
        context = _context()
        try:
            for rank in range(job.world_size):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_run_rank, args=(rank, job.world_size, port, theirs, str(job.log)), daemon=True
                )
                process.start()
                theirs.close()
                self._processes.append(process)
                self.connections.append(ours)
                ours.send_bytes(pickle.dumps((job.function, job.arguments)))
        except BaseException:
            self.end()
            raise

    def receive(self, rank: int) -> tuple[Any, ...]:
        try:
            message: tuple[Any, ...] = self.connections[rank].recv()
            return message
        except (EOFError, ConnectionResetError):
            self._processes[rank].join(5)
            return "failure", f"the process ended with exit code {self._processes[rank].exitcode}", ""

    def note_failure(self, rank: int, summary: str, stack: str) -> None:
        if not self.failures:
            self.deadline = min(self.deadline, time.monotonic() + GRACE)
        self.failures.append((rank, summary, stack))
        with self.job.log.open("a", encoding="utf-8") as log:
            log.write(f"\nrank {rank}: {summary}\n{stack}\n")

    def failure(self) -> JobError:
        where = f"the whole log is in {self.job.log}"
        if not self.failures:
            return JobError(f"{self.job.name} was not over after {self.job.timeout:.0f} s; {where}")
        rank, summary, _ = self.failures[0]
        who = f" (rank {rank} of {self.job.world_size})" if self.job.world_size > 1 else ""
        return JobError(f"{self.job.name} failed{who}: {summary}; {where}")

    def end(self) -> None:
        for process in self._processes:
            if process.is_alive() and process.pid is not None:
                # The process leads a group of its own (data workers are in it); before that it is alone.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    process.kill()
            process.join(10)
        for connection in self.connections:
            connection.close()


def _context() -> ForkServerContext:
    # Read by the server when it starts; its children keep to one thread each.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    _end_server_at_exit()
    # Ctrl-C while the server loads is for the caller alone, who ends everything.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


@cache
def _end_server_at_exit() -> None:
    """Left to itself the server ends some seconds after its caller."""
    atexit.register(forkserver._forkserver._stop)  # type: ignore[attr-defined]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _run_rank(rank: int, world_size: int, port: int, connection: Connection, log: str) -> None:
    os.setpgid(0, 0)
    # Ctrl-C reaches the caller, who ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True, name="end-with-parent").start()
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    sys.stdout, sys.stderr = (os.fdopen(standard, "w", buffering=1, closefd=False) for standard in (1, 2))
    if world_size > 1:
        environment: dict[str, object] = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": world_size,
        }
        environment |= {"GROUP_RANK": 0, "MASTER_ADDR": HOST, "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "reproduce"}
        os.environ.update({name: str(value) for name, value in environment.items()})

    def tell(share: float, words: str) -> None:
        connection.send(("progress", share, words))

    try:
        import torch

        torch.set_num_threads(1)
        function, arguments = pickle.loads(connection.recv_bytes())
        reply = ("result", function(rank, tell, *arguments))
        connection.send(reply)
    except BaseException as error:
        connection.send(("failure", _summary(error), traceback.format_exc()))
    sys.stdout.flush()
    sys.stderr.flush()


def _summary(error: BaseException) -> str:
    """One line; the class only where the message does not speak for itself."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(os.getpgrp(), signal.SIGKILL)
