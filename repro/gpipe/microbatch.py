"""Micro-batches: a mini-batch cut along dimension 0, and what may travel between layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from repro.errors import UserError

Boundary = Tensor | tuple[Tensor | None, ...]
"""What a layer takes and returns: a tensor or a flat tuple of tensors and None."""


class BatchError(UserError, ValueError):
    """A batch, or what a layer made of it, that cannot be cut into micro-batches or sent to the next stage."""


def elements(boundary: Boundary) -> tuple[Tensor | None, ...]:
    """The boundary as a tuple, also where it is a single tensor."""
    return boundary if isinstance(boundary, tuple) else (boundary,)


def like(boundary: Boundary, values: Sequence[Tensor | None]) -> Boundary:
    """``values`` in the form of ``boundary``: a tuple, or the single tensor."""
    if isinstance(boundary, tuple):
        return tuple(values)
    (value,) = values
    assert value is not None
    return value


def map_tensors(function: Callable[[Tensor], Tensor], boundary: Boundary) -> Boundary:
    """``function`` of each tensor, in the form of ``boundary``; None stays None."""
    return like(boundary, [None if element is None else function(element) for element in elements(boundary)])


def check_boundary(value: object, where: str) -> Boundary:
    """Returns ``value`` if it may cross a stage boundary.

    Raises:
        BatchError: it is neither a tensor nor a flat tuple of tensors and None.
    """
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tuple):
        for position, element in enumerate(value):
            if element is not None and not isinstance(element, Tensor):
                raise BatchError(
                    f"{where}: element {position} is a {type(element).__name__}; a layer takes and returns a tensor "
                    "or a "
                    "flat tuple of tensors and None"
                )
        return value
    raise BatchError(
        f"{where} is a {type(value).__name__}; a layer takes and returns a tensor or a flat tuple of tensors and None"
    )


def count_rows(inputs: object, targets: object | None = None) -> int:
    """Rows (dimension 0) of a mini-batch.

    Raises:
        BatchError: an element has no dimension 0, or the elements of inputs and targets disagree in it.
    """
    first: tuple[str, int] | None = None
    for name, part in (("inputs", inputs), ("targets", targets)):
        if part is None:
            continue
        values = elements(check_boundary(part, name))
        for position, element in enumerate(values):
            if element is None:
                continue
            label = f"{name}[{position}]" if isinstance(part, tuple | list) else name
            if element.dim() == 0:
                raise BatchError(f"{label} is a scalar; each element of a batch needs a row per sample in dimension 0")
            if first is None:
                first = (label, element.shape[0])
            elif element.shape[0] != first[1]:
                raise BatchError(
                    f"{label} has {element.shape[0]} rows (shape {tuple(element.shape)}) but {first[0]} has "
                    f"{first[1]}; "
                    "all elements of a batch must agree in dimension 0 (see split_batch)"
                )
    if first is None:
        raise BatchError("the batch holds no tensor; split_batch(batch) must return (inputs, targets)")
    return first[1]


@lru_cache(maxsize=64)
def micro_batch_rows(rows: int, num_micro_batches: int) -> tuple[int, ...]:
    """Rows of each micro-batch: as equal as can be, the longer ones first, never an empty one.

    A batch with fewer rows than ``num_micro_batches`` is cut into as many micro-batches as it has rows.
    """
    if rows == 0:
        return ()
    parts = min(rows, num_micro_batches)
    short, longer = divmod(rows, parts)
    return tuple(short + 1 if part < longer else short for part in range(parts))


def scatter(batch: Boundary, rows: Sequence[int]) -> list[Boundary]:
    """Cuts ``batch`` into micro-batches of the given ``rows``, which share its memory.

    ``.data`` gives each a version counter of its own: a layer that works in place on one micro-batch does not change
    what another has saved for its backward.
    """
    columns = [
        [None] * len(rows) if element is None else [part.data for part in _split(element, rows)]
        for element in elements(batch)
    ]
    return [like(batch, [column[part] for column in columns]) for part in range(len(rows))]


def _split(element: Tensor, rows: Sequence[int]) -> Sequence[Tensor]:
    return element.split(list(rows)) if len(rows) > 1 else (element,)


CHANGED = (
    "what a layer returned has been changed in place after it was handed to the next stage (memory of its own that the "
    "layer fills again?); let it return a new tensor"
)


def changes(value: Tensor | None) -> int:
    """How often a tensor has been changed in place, by PyTorch's count; 0 where it does not count."""
    return 0 if value is None or value.is_inference() else value._version


def changes_of(boundary: Boundary) -> tuple[int, ...]:
    """Likewise of each element."""
    return tuple(map(changes, elements(boundary)))


class MicroBatches:
    """The micro-batches of the inputs or targets of a step, cut when the first of them is asked for.

    Args:
        whole: gives the mini-batch, and waits for it where it comes from another rank.
        rows: of each micro-batch.
    """

    def __init__(self, whole: Callable[[], Boundary], rows: Sequence[int]) -> None:
        self._whole = whole
        self._rows = rows
        self._cut: list[Boundary] | None = None

    def __getitem__(self, micro_batch: int) -> Boundary:
        if self._cut is None:
            self._cut = scatter(self._whole(), self._rows)
        return self._cut[micro_batch]


def gather(micro_batches: Sequence[Boundary]) -> Boundary:
    """Puts the micro-batches of a mini-batch together again, in order."""
    first = micro_batches[0]
    columns = zip(*(elements(micro_batch) for micro_batch in micro_batches), strict=True)
    return like(
        first, [None if column[0] is None else torch.cat([c for c in column if c is not None]) for column in columns]
    )
