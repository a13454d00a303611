"""Runs a function on N gloo ranks: a persistent pool per world size, and fresh processes for kills and hangs.

A group is up in about a tenth of a second. Nothing here can hang: each call has a limit, after which every rank prints
its stacks and is killed.
"""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from tests.helpers.rank_processes import Ranks, fresh_rank, pool_rank

DEFAULT_TIMEOUT = 60.0
# How long the other ranks may take to end by themselves once one has failed; their errors complete the picture.
GRACE = 0.5


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


class Pool:
    """``world_size`` ranks that stay up between calls; after a failure the next call starts new ones."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._ranks: Ranks | None = None

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
            self._ranks = Ranks(self.world_size, pool_rank)
        ranks = self._ranks
        try:
            for connection in ranks.connections:
                connection.send_bytes(request)
            results = self._collect(ranks, f"{function.__module__}.{function.__qualname__}", timeout)
        except BaseException:
            self.close()
            raise
        return [results[rank] for rank in range(self.world_size)]

    def _collect(self, ranks: Ranks, name: str, timeout: float) -> dict[int, Any]:
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
    ranks = Ranks(world_size, fresh_rank)
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
        # All at once: who is waited for before the others are killed, they see end, and end by themselves.
        for rank in timed_out:
            ranks.processes[rank].kill()
        for rank in timed_out:
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
