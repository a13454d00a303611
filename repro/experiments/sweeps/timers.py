"""Waits that end when they should, on cores that are awake when a message comes."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import BinaryIO

_PR_SET_TIMERSLACK = 29
_NANOSECOND = 1

_WAKING = 120e-6
"""Seconds by which nearly every sleep is too long at most, also on a virtual machine."""

_LATENCY_REQUEST = Path("/dev/cpu_dma_latency")


def sharpen_timers() -> None:
    """Has this thread's waits end when they should, and idle cores stay awake as long as this process lives.

    Linux adds 50 us to the waits of ordinary threads, and lets idle cores halt: to wake one up takes longer than a
    message on a virtual machine. A core that computes, for which a wait stands, is awake. Elsewhere, and without the
    right to ask for it (``keeps_cores_awake``), nothing happens. A rank that emulates calls it once, at its start.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _NANOSECOND, 0, 0, 0)
    if keeps_cores_awake():
        _request_no_latency()


def keeps_cores_awake() -> bool:
    """Whether emulated steps run on idle cores that poll: Linux allows it to root, or to whom the device is given."""
    return os.access(_LATENCY_REQUEST, os.W_OK)


@cache
def _request_no_latency() -> BinaryIO:
    # The request holds until the file is closed, at the end of the process.
    request = _LATENCY_REQUEST.open("wb", buffering=0)
    request.write(bytes(4))
    return request


def wait_until(moment: float) -> None:
    """Sleeps until ``moment`` of ``time.perf_counter``; returns at once where it has passed.

    A core that has slept wakes up late, so the thread wakes up before the moment and looks at the clock.
    """
    left = moment - _WAKING - time.perf_counter()
    if left > 0:
        time.sleep(left)
    while time.perf_counter() < moment:
        os.sched_yield()
