from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.experiments.sweeps import timers
from repro.experiments.sweeps.timers import keeps_cores_awake, sharpen_timers, wait_until


@pytest.fixture
def request_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "cpu_dma_latency"
    monkeypatch.setattr(timers, "_LATENCY_REQUEST", path)
    timers._request_no_latency.cache_clear()
    yield path
    timers._request_no_latency.cache_clear()


def test_a_wait_is_never_short_and_the_past_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.perf_counter()
    wait_until(begun + 0.01)
    assert time.perf_counter() - begun >= 0.01
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"slept {seconds} s"))
    wait_until(begun)


def test_cores_are_asked_to_stay_awake_once_for_as_long_as_the_process_lives(request_file: Path) -> None:
    request_file.touch()
    assert keeps_cores_awake()
    sharpen_timers()
    sharpen_timers()
    assert request_file.read_bytes() == bytes(4)
    assert not timers._request_no_latency().closed


def test_without_the_device_nothing_is_asked(request_file: Path) -> None:
    assert not keeps_cores_awake()
    sharpen_timers()
    assert not request_file.exists()
