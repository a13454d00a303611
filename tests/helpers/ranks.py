"""Runs a function on N gloo ranks: a persistent pool per world size, and fresh processes for kills and hangs.

Every rank is forked from one server process that has torch and lightning loaded, so that a group is up in about a tenth
of a second. A rank sees the environment that torchrun would give it and an initialised gloo default group, whose store
lives on rank 0. Nothing here can hang: each call has a limit, after which every rank prints its stacks and is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

PRELOAD = ["pytest", "torch", "torch.distributed.device_mesh", "torch._dynamo", "lightning"]
DEFAULT_TIMEOUT = 60.0
# How long the other ranks may take to end by themselves once one has failed; their errors complete the picture.
GRACE = 0.5
STACKS = "what this rank was doing when the time was over:"


class RankError(RuntimeError):
    """The first failure of a call, with the number of the rank and the traceback that it had there.

    Attributes:
        rank: the rank that failed first.
        type_name: the name of the class of what was raised there, or of the reason ("killed", "timeout").
        rank_traceback: its traceback as text.
    """

    def __init__(self, message: str, *, rank: int, type_name: str, rank_traceback: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.type_name = type_name
        self.rank_traceback = rank_traceback


class RankTimeout(RankError):
    """A call that was not over in time; the message shows the stacks of every rank."""


@dataclass(frozen=True)
class RankEnd:
    """How one fresh rank ended.

    Attributes:
        exit_code: 0, the code given to ``sys.exit``, 1 after an exception, or minus the signal that ended it.
        stderr: what it printed there, the traceback of an uncaught exception included.
        result: what the function returned, None where it did not return.
        seconds: from the moment at which every rank was up to the end of this one.
        timed_out: whether it was killed because the time was over; ``stderr`` then ends with its stacks.
    """

    exit_code: int
    stderr: str
    result: Any
    seconds: float
    timed_out: bool


def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _join_group(rank: int, world_size: int, connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    host = "127.0.0.1"
    limit = timedelta(seconds=120)
    if rank == 0:
        store = dist.TCPStore(
            host, 0, world_size, is_master=True, wait_for_workers=False, timeout=limit, multi_tenant=True
        )
        connection.send(store.port)
        port = connection.recv()
    else:
        port = connection.recv()
        store = dist.TCPStore(host, port, world_size, is_master=False, wait_for_workers=False, timeout=limit)
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    environment |= {"GROUP_RANK": 0, "MASTER_ADDR": host, "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "tests"}
    os.environ.update({name: str(value) for name, value in environment.items()} | {"OMP_NUM_THREADS": "1"})
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=limit)
    connection.send("up")


def _become_rank(rank: int, world_size: int, connection: Connection, stderr_path: str) -> None:
    os.setpgid(0, 0)
    descriptor = os.open(stderr_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    sys.stdout, sys.stderr = (os.fdopen(standard, "w", buffering=1, closefd=False) for standard in (1, 2))
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)
    threading.Thread(target=_end_with_parent, daemon=True, name="ranks-end-with-parent").start()
    _join_group(rank, world_size, connection)


def _pool_rank(rank: int, world_size: int, connection: Connection, stderr_path: str) -> None:
    _become_rank(rank, world_size, connection, stderr_path)
    import torch

    while True:
        request = connection.recv_bytes()
        random.seed(0)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float32)
        try:
            function, arguments = pickle.loads(request)
            reply = pickle.dumps((True, function(rank, world_size, *arguments)))
        except BaseException as error:
            reply = pickle.dumps((False, (type(error).__name__, traceback.format_exc())))
        connection.send_bytes(reply)


def _fresh_rank(rank: int, world_size: int, connection: Connection, stderr_path: str) -> None:
    _become_rank(rank, world_size, connection, stderr_path)
    function, arguments = pickle.loads(connection.recv_bytes())
    connection.send_bytes(pickle.dumps(function(rank, world_size, *arguments)))


class _Ranks:
    """N processes, their connections, and what they print."""

    def __init__(self, world_size: int, target: Callable[..., None]) -> None:
        context = _context()
        self.directory = Path(tempfile.mkdtemp(prefix="ranks-"))
        self.processes: list[ForkServerProcess] = []
        self.connections: list[Connection] = []
        # Not daemons, since a rank may have data loader workers; so at exit they would be waited for.
        atexit.register(self.kill)
        try:
            for rank in range(world_size):
                ours, theirs = context.Pipe()
                arguments = (rank, world_size, theirs, str(self.directory / str(rank)))
                process = context.Process(target=target, args=arguments, name=f"rank {rank}")
                process.start()
                theirs.close()
                self.processes.append(process)
                self.connections.append(ours)
            port = self._receive(0)
            for connection in self.connections:
                connection.send(port)
            for rank in range(world_size):
                self._receive(rank)
        except BaseException:
            self.kill()
            raise

    def _receive(self, rank: int) -> Any:
        if not self.connections[rank].poll(DEFAULT_TIMEOUT):
            raise TimeoutError(f"rank {rank} of {len(self.processes)} did not come up in {DEFAULT_TIMEOUT:g} s")
        try:
            return self.connections[rank].recv()
        except EOFError:
            raise RuntimeError(f"rank {rank} ended while it came up:\n{self.stderr(rank)}") from None

    def stderr(self, rank: int) -> str:
        path = self.directory / str(rank)
        return path.read_text(errors="replace") if path.exists() else ""

    def dump_stacks(self) -> None:
        """Lets every rank that is still alive write the stacks of its threads to its stderr."""
        for rank, process in enumerate(self.processes):
            if process.is_alive() and process.pid:
                with (self.directory / str(rank)).open("a") as file:
                    file.write(f"\n{STACKS}\n")
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.3)

    def kill(self) -> None:
        """Ends every rank and what it started, and forgets them."""
        atexit.unregister(self.kill)
        for process in self.processes:
            if process.pid:
                for end in (os.killpg, os.kill):
                    with contextlib.suppress(ProcessLookupError):
                        end(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.join(10)
        for connection in self.connections:
            connection.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Pool:
    """``world_size`` ranks that stay up between calls; after a failure the next call starts new ones."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._ranks: _Ranks | None = None

    def run(self, function: Callable[..., Any], *arguments: Any, timeout: float = DEFAULT_TIMEOUT) -> list[Any]:
        """Calls ``function(rank, world_size, *arguments)`` on every rank and returns the results, one a rank.

        Args:
            function: a function at module level; it and the arguments are pickled.
            timeout: seconds after which all ranks are killed.

        Raises:
            RankError: what the first rank to fail raised, with its number and traceback.
            RankTimeout: the call was not over in time; shows what every rank was doing.
        """
        request = pickle.dumps((function, arguments))
        if self._ranks is None:
            self._ranks = _Ranks(self.world_size, _pool_rank)
        ranks = self._ranks
        try:
            for connection in ranks.connections:
                connection.send_bytes(request)
            results = self._collect(ranks, f"{function.__module__}.{function.__qualname__}", timeout)
        except BaseException:
            self.close()
            raise
        return [results[rank] for rank in range(self.world_size)]

    def _collect(self, ranks: _Ranks, name: str, timeout: float) -> dict[int, Any]:
        results: dict[int, Any] = {}
        failures: list[tuple[int, str, str]] = []
        end = time.monotonic() + timeout
        waiting = {connection: rank for rank, connection in enumerate(ranks.connections)}
        while waiting:
            ready = wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = waiting.pop(connection)  # type: ignore[call-overload]
                try:
                    success, value = pickle.loads(connection.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, ConnectionResetError):
                    ranks.processes[rank].join(1)
                    reason = f"ended with exit code {ranks.processes[rank].exitcode}\n{ranks.stderr(rank)}"
                    success, value = False, ("killed", reason)
                if success:
                    results[rank] = value
                    continue
                if not failures:
                    end = min(end, time.monotonic() + GRACE)
                failures.append((rank, *value))
        if failures:
            rank, type_name, text = failures[0]
            others = [f"\nrank {other} failed after it with {kind}" for other, kind, _ in failures[1:]]
            others += [f"\nrank {other} had not ended" for other in sorted(waiting.values())]
            message = f"rank {rank} of {self.world_size} failed in {name}:\n{text}{''.join(others)}"
            raise RankError(message, rank=rank, type_name=type_name, rank_traceback=text)
        if waiting:
            ranks.dump_stacks()
            stuck = sorted(waiting.values())
            texts = [
                f"--- rank {rank}{'' if rank in stuck else ' (done)'} ---\n{ranks.stderr(rank)}"
                for rank in range(self.world_size)
            ]
            headline = f"{name} was not over after {timeout:g} s on ranks {stuck} of {self.world_size}:"
            message = "\n".join([headline, *texts])
            raise RankTimeout(message, rank=stuck[0], type_name="timeout", rank_traceback=texts[stuck[0]])
        return results

    def process_ids(self) -> list[int]:
        """The process of each rank; empty before the first call and after a failure."""
        return [] if self._ranks is None else [process.pid or 0 for process in self._ranks.processes]

    def close(self) -> None:
        """Ends the ranks; the next call starts new ones."""
        if self._ranks is not None:
            self._ranks.kill()
            self._ranks = None


class Pools:
    """One pool per world size, made when first asked for. Called with the world size it returns its pool."""

    def __init__(self) -> None:
        self._pools: dict[int, Pool] = {}

    def __call__(self, world_size: int) -> Pool:
        return self._pools.setdefault(world_size, Pool(world_size))

    def close(self) -> None:
        """Ends the ranks of every pool."""
        for pool in self._pools.values():
            pool.close()


def fresh_ranks(
    world_size: int, function: Callable[..., Any], *arguments: Any, timeout: float = DEFAULT_TIMEOUT
) -> list[RankEnd]:
    """Calls ``function(rank, world_size, *arguments)`` on ranks of its own and tells how each process ended.

    For tests of kills and hangs. A rank that raises prints its traceback and exits with 1, as a script would. Whatever
    is alive after ``timeout`` seconds prints its stacks and is killed. What a rank started ends with it.
    """
    ranks = _Ranks(world_size, _fresh_rank)
    try:
        start = time.monotonic()
        for connection in ranks.connections:
            connection.send_bytes(pickle.dumps((function, arguments)))
        ends: dict[int, float] = {}
        results: dict[int, Any] = {}
        timed_out: set[int] = set()
        while len(ends) < world_size:
            left = {process.sentinel: rank for rank, process in enumerate(ranks.processes) if rank not in ends}
            pipes = {ranks.connections[rank]: rank for rank in left.values() if rank not in results}
            ready = wait([*left, *pipes], max(0.0, start + timeout - time.monotonic()))
            if not ready:
                timed_out = set(left.values())
                ranks.dump_stacks()
                break
            for item in ready:
                if item in pipes:
                    rank = pipes[item]  # type: ignore[index]
                    try:
                        results[rank] = pickle.loads(ranks.connections[rank].recv_bytes())
                    except (EOFError, ConnectionResetError):
                        results[rank] = None
                else:
                    ends[left[item]] = time.monotonic() - start  # type: ignore[index]
        for rank in timed_out:
            ranks.processes[rank].kill()
            ranks.processes[rank].join(10)
        return [
            RankEnd(
                exit_code=process.exitcode if process.exitcode is not None else -signal.SIGKILL,
                stderr=ranks.stderr(rank),
                result=results.get(rank),
                seconds=ends.get(rank, timeout),
                timed_out=rank in timed_out,
            )
            for rank, process in enumerate(ranks.processes)
        ]
    finally:
        ranks.kill()
