"""Bytes that a step moves, in closed form: what tensor and data parallelism would send for the same model.

Both count what one device sends; a ring all-reduce of n bytes over N devices sends 2 n (N - 1) / N from each (Patarasuk
and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations").
"""

from __future__ import annotations

from collections.abc import Sequence


def ring_all_reduce(nbytes: float, devices: int) -> float:
    """Bytes that each device sends: 2 n (N - 1) / N."""
    return 2 * nbytes * (devices - 1) / devices


def tensor_parallel(layer_outputs: Sequence[float], devices: int) -> float:
    """Bytes that a device sends in a step if every layer were split over all devices.

    Four all-reduces a layer, two in F and two in B, each of the layer's output (Shoeybi et al. 2019, "Megatron-LM",
    section 3; 8 b s h (t - 1) / t numbers for a layer of a Transformer: Narayanan et al. 2021, "Efficient large-scale
    language model training on GPU clusters", section 3.2). A layer with attention to a second sequence has six, and
    R repeats those of F: the figure is what a step has at least.

    Args:
        layer_outputs: bytes of the output of each layer that is split, for the whole mini-batch.
        devices: t.
    """
    return 4 * ring_all_reduce(sum(layer_outputs), devices)


def data_parallel(parameters: int, gradient_bytes: int, devices: int) -> float:
    """Bytes that a device sends in a step if every device held the whole model: one all-reduce of all gradients."""
    return ring_all_reduce(parameters * gradient_bytes, devices)
