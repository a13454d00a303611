"""The processes of gloo ranks: how one comes up, what it serves, and how all of them end.

Every rank is forked from one server process that has torch and lightning loaded. It sees the environment that torchrun
would give it and an initialised gloo default group, whose store lives on rank 0.
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
from datetime import timedelta
from functools import cache
from multiprocessing import forkserver as servers
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

PRELOAD = ["pytest", "torch", "torch.distributed.device_mesh", "torch._dynamo", "lightning"]
STACKS = "what this rank was doing when the time was over:"
START_TIMEOUT = 60.0
STACKS_TIMEOUT = 20.0


def context() -> multiprocessing.context.ForkServerContext:
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(PRELOAD)
    _end_server_at_exit()
    return forkserver


@cache
def _end_server_at_exit() -> None:
    """Left to itself the server ends some seconds after the tests."""
    atexit.register(servers._forkserver._stop)  # type: ignore[attr-defined]


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


def pool_rank(rank: int, world_size: int, connection: Connection, stderr_path: str) -> None:
    _become_rank(rank, world_size, connection, stderr_path)
    import torch

    while True:
        request = connection.recv_bytes()
        random.seed(0)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float32)
        environment = dict(os.environ)
        try:
            function, arguments = pickle.loads(request)
            reply = pickle.dumps((True, function(rank, world_size, *arguments)))
        except BaseException as error:
            reply = pickle.dumps((False, (type(error).__name__, traceback.format_exc())))
        os.environ.clear()  # Lightning leaves variables behind, by which later calls would seed their workers
        os.environ.update(environment)
        connection.send_bytes(reply)


def fresh_rank(rank: int, world_size: int, connection: Connection, stderr_path: str) -> None:
    _become_rank(rank, world_size, connection, stderr_path)
    function, arguments = pickle.loads(connection.recv_bytes())
    connection.send_bytes(pickle.dumps(function(rank, world_size, *arguments)))


class Ranks:
    """N processes, their connections, and what they print."""

    def __init__(self, world_size: int, target: Callable[..., None]) -> None:
        server = context()
        self.directory = Path(tempfile.mkdtemp(prefix="ranks-"))
        self.processes: list[ForkServerProcess] = []
        self.connections: list[Connection] = []
        # Not daemons, since a rank may have data loader workers; so at exit they would be waited for.
        atexit.register(self.kill)
        try:
            for rank in range(world_size):
                ours, theirs = server.Pipe()
                arguments = (rank, world_size, theirs, str(self.directory / str(rank)))
                process = server.Process(target=target, args=arguments, name=f"rank {rank}")
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
        if not self.connections[rank].poll(START_TIMEOUT):
            raise TimeoutError(f"rank {rank} of {len(self.processes)} did not come up in {START_TIMEOUT:g} s")
        try:
            return self.connections[rank].recv()
        except EOFError:
            raise RuntimeError(f"rank {rank} ended while it came up:\n{self.stderr(rank)}") from None

    def stderr(self, rank: int) -> str:
        path = self.directory / str(rank)
        return path.read_text(errors="replace") if path.exists() else ""

    def dump_stacks(self) -> None:
        """Lets every rank that is still alive write the stacks of its threads to its stderr, and waits until it has."""
        asked = [rank for rank, process in enumerate(self.processes) if process.is_alive() and process.pid]
        for rank in asked:
            with (self.directory / str(rank)).open("a") as file:
                file.write(f"\n{STACKS}\n")
            os.kill(self.processes[rank].pid or 0, signal.SIGUSR1)
        end, before = time.monotonic() + STACKS_TIMEOUT, None
        while time.monotonic() < end:
            time.sleep(0.2)
            told = [self.stderr(rank).rpartition(STACKS)[2] for rank in asked]
            # Nothing marks the end of what is written.
            if all("most recent call first" in text for text in told) and told == before:
                return
            before = told

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
