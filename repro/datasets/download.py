"""Downloads through the ordinary clients (pip, apt-get, npm) and torchvision's mirrors, all with bounded time."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from repro.datasets.archives import find_wheel
from repro.datasets.paths import DataError

OnBytes = Callable[[int], None]
"""Told the number of bytes that have arrived so far."""

_CONNECT_SECONDS = 15
_SLOWEST_BYTES_PER_SECOND = 100_000
_POLL_SECONDS = 0.2


def download_wheel(requirement: str, size: int, folder: Path, on_bytes: OnBytes) -> None:
    """Put the wheel of ``requirement`` into ``folder``, without dependencies and without installing anything.

    Raises:
        DataError: pip is missing, the package index does not answer, or it took unreasonably long.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pip-") as work:
        arrived = Path(work) / "arrived"
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
            "--disable-pip-version-check", "--no-input", "--ignore-requires-python", "--retries", "1",
            "--timeout", str(_CONNECT_SECONDS), "--dest", str(arrived), requirement,
        ]  # fmt: skip
        # pip keeps a download under TMPDIR while it arrives: there it can be watched, and goes away with `work`.
        _run(command, Path(work), _time_limit(size), on_bytes, env={**os.environ, "TMPDIR": work})
        wheel = find_wheel(arrived, requirement)
        if wheel is None:
            raise DataError(f"pip downloaded no wheel for {requirement}")
        os.replace(wheel, folder / wheel.name)


def download_debian_package(package: str, size: int, folder: Path, on_bytes: OnBytes) -> None:
    """Put the ``.deb`` of ``package`` into ``folder`` with apt-get: no root, nothing installed.

    Where apt knows no such package (its lists may be empty on a fresh machine), the lists are fetched into a private
    folder first; the system's stay as they are.

    Raises:
        DataError: there is no apt-get, or it found no such package.
    """
    if shutil.which("apt-get") is None:
        raise DataError("there is no apt-get on this machine")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".apt-") as name:
        work = Path(name)
        arrived, lists, cache = work / "arrived", work / "lists", work / "cache"
        for new in (arrived, lists / "partial", cache / "archives" / "partial"):
            new.mkdir(parents=True)
        common = ["apt-get", "-q", "-o", f"Acquire::http::Timeout={_CONNECT_SECONDS}", "-o", "Acquire::Retries=1"]
        # Root's apt hands its work to a user who may not enter `work`; naming root keeps it in this process.
        common += ["-o", "APT::Sandbox::User=root"]
        private = [*common, "-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}"]
        try:
            _run([*common, "download", package], arrived, _time_limit(size), on_bytes)
        except DataError:
            # One unreachable third-party source fails the update as a whole: let the download decide.
            with contextlib.suppress(DataError):
                _run([*private, "update"], work, _time_limit(size), lambda _: None)
            _run([*private, "download", package], arrived, _time_limit(size), on_bytes)
        found = sorted(arrived.glob("*.deb"))
        if not found:
            raise DataError(f"apt-get downloaded no file for {package}")
        os.replace(found[0], folder / found[0].name)


def download_npm_package(requirement: str, size: int, folder: Path, on_bytes: OnBytes) -> None:
    """Put the archive of the npm package ``requirement`` (``name@version``) into ``folder``; nothing is installed.

    Raises:
        DataError: there is no npm, or it could not download the package.
    """
    if shutil.which("npm") is None:
        raise DataError("there is no npm on this machine")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".npm-") as name:
        work = Path(name)
        arrived = work / "arrived"
        arrived.mkdir()
        # A private cache: the download is watched in it, and goes away with `work`.
        command = ["npm", "pack", "--loglevel=error", "--ignore-scripts", "--fetch-retries=1"]
        command += [f"--fetch-timeout={1000 * int(_time_limit(size))}", f"--cache={work / 'cache'}"]
        command += [f"--pack-destination={arrived}", requirement]
        _run(command, work, _time_limit(size), on_bytes)
        found = sorted(arrived.glob("*.tgz"))
        if not found:
            raise DataError(f"npm downloaded no archive for {requirement}")
        os.replace(found[0], folder / found[0].name)


def download_from_mirrors(mirrors: Sequence[str], name: str, size: int, on_bytes: OnBytes) -> bytes:
    """The file ``name`` from the first mirror that answers.

    Raises:
        DataError: none answered in time.
    """
    failures = []
    for mirror in mirrors:
        deadline = time.monotonic() + _time_limit(size)
        received = bytearray()
        try:
            with urllib.request.urlopen(f"{mirror.rstrip('/')}/{name}", timeout=_CONNECT_SECONDS) as response:
                while chunk := response.read(1 << 16):
                    received += chunk
                    on_bytes(len(received))
                    if time.monotonic() > deadline:
                        raise TimeoutError("too slow")
            return bytes(received)
        except (urllib.error.URLError, OSError) as error:
            failures.append(str(error))
    raise DataError(f"no mirror gave {name} ({'; '.join(failures) or 'none is known'})")


def download_from_torchvision(name: str, size: int, on_bytes: OnBytes) -> bytes:
    """The file ``name`` of Fashion-MNIST from the mirrors that torchvision knows."""
    from torchvision.datasets import FashionMNIST  # slow to import, and needed only here

    return download_from_mirrors(FashionMNIST.mirrors, name, size, on_bytes)


@dataclass(frozen=True)
class Downloads:
    """The ways out to the network, in one place so that a test can close them."""

    wheel: Callable[[str, int, Path, OnBytes], None] = download_wheel
    debian_package: Callable[[str, int, Path, OnBytes], None] = download_debian_package
    mirror_file: Callable[[str, int, OnBytes], bytes] = download_from_torchvision
    npm_package: Callable[[str, int, Path, OnBytes], None] = download_npm_package


def progress_bar(console: Console) -> Progress:
    """A bar that counts bytes; silent where the output is not a terminal (a log gets one line per file instead)."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _time_limit(size: int) -> float:
    return 60 + size / _SLOWEST_BYTES_PER_SECOND


def _run(
    command: Sequence[str], folder: Path, seconds: float, on_bytes: OnBytes, env: dict[str, str] | None = None
) -> None:
    """Run ``command`` in ``folder`` and report how much that folder grows; its last line of output is the error."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env
        )
        deadline = time.monotonic() + seconds
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise DataError(f"`{_shown(command)}` took more than {seconds:.0f} s")
                on_bytes(_bytes_below(folder))
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode != 0:
            output.seek(0)
            lines = [line for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith(("ERROR", "E:", "npm error"))] or lines or ["no output"]
            # pip blames the version when the truth is that nothing answered.
            offline = (
                " (no connection: is there a network?)" if any("connection broken" in line for line in lines) else ""
            )
            raise DataError(f"`{_shown(command)}` failed: {errors[-1].strip()}{offline}")


def _shown(command: Sequence[str]) -> str:
    """The part of a command that a person would type."""
    program = "pip" if "pip" in command[:3] else command[0]
    verb = next(word for word in command if word in ("download", "update", "pack"))
    return f"{program} {verb} {command[-1]}" if command[-1] != verb else f"{program} {verb}"


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # pip and apt move files while we look
    return total
