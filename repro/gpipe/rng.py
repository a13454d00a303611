"""Keyed randomness: what a layer draws depends on what it works on, not on where, when or how often it runs.

The key is (seed, batch counter, replica, micro-batch, layer). So the dropout mask of a recomputation is the mask of the
forward, and K = 1 draws what K = 8 draws, whatever the schedule.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch

from repro.errors import UserError

_64_BITS = 2**64 - 1
_STEP = struct.Struct("<3Q")
_PLACE = struct.Struct("<2Q")


def mix(*parts: int) -> int:
    """Hashes integers (64 bits each) to 32 bits; the CPU generator uses no more of a seed."""
    return _hashed(struct.pack(f"<{len(parts)}Q", *(part & _64_BITS for part in parts)))


def _hashed(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "little")


def initialisation_seed(seed: int, layer: int) -> int:
    """The seed under which the factory of ``layer`` (global index) runs."""
    return mix(seed, -1, layer)


@dataclass(frozen=True)
class StepKey:
    """The key of one mini-batch.

    Attributes:
        seed: the run's seed.
        batch: counts the mini-batches of the run (``global_step`` repeats within an accumulation window).
        replica: index of the data-parallel replica.
    """

    seed: int
    batch: int
    replica: int = 0

    def layer(self, micro_batch: int, layer: int) -> int:
        """The 32-bit seed of ``layer`` (global index) on ``micro_batch``: ``mix`` of the key."""
        return _hashed(self._start + _PLACE.pack(micro_batch, layer))

    @cached_property
    def _start(self) -> bytes:
        return _STEP.pack(self.seed & _64_BITS, self.batch & _64_BITS, self.replica & _64_BITS)


def generator(device: torch.device) -> torch.Generator:
    """The default generator of ``device``, the one that dropout draws from.

    Raises:
        UserError: a kind of device whose generator is not known here: recomputing would draw other masks in silence.
    """
    if device.type == "cuda":
        torch.cuda.init()
        generators: tuple[torch.Generator, ...] = torch.cuda.default_generators
        return generators[torch.cuda.current_device() if device.index is None else device.index]
    if device.type == "mps":
        own: torch.Generator = torch.mps._get_default_mps_generator()
        return own
    if device.type != "cpu":
        raise UserError(f"a stage cannot run on {device}: the pipeline knows cpu, cuda and mps devices")
    return torch.default_generator


@contextmanager
def preserved(device: torch.device) -> Iterator[torch.Generator]:
    """Yields the device's generator and puts its state back at the end."""
    drawn_from = generator(device)
    state = drawn_from.get_state()
    try:
        yield drawn_from
    finally:
        drawn_from.set_state(state)
