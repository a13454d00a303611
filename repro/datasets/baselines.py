"""What a translator has to beat: copying the source, and the English of the most similar training sentence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from repro.datasets.paths import DataError
from repro.datasets.translation import Pair

_ORDERS = (2, 3, 4)
_BLOCK = 128


def copy_source(test: Sequence[Pair]) -> list[str]:
    """Hypotheses that leave every source as it is."""
    return [pair.source for pair in test]


def nearest_neighbour(training: Sequence[Pair], test: Sequence[Pair]) -> list[str]:
    """For every test sentence the English of the training sentence of its language with the most similar source.

    Similarity is the cosine of character 2- to 4-gram counts weighted by log inverse document frequency; ties go to
    the first sentence.

    Raises:
        DataError: a test language has no training sentence.
    """
    hypotheses = [""] * len(test)
    places: dict[str, list[int]] = {}
    for index, pair in enumerate(test):
        places.setdefault(pair.language, []).append(index)
    for language, indices in places.items():
        known = [pair for pair in training if pair.language == language]
        if not known:
            raise DataError(f"nearest neighbour needs training sentences in {language!r}, there are none")
        nearest = _nearest([pair.source for pair in known], [test[index].source for index in indices])
        for index, neighbour in zip(indices, nearest, strict=True):
            hypotheses[index] = known[neighbour].english
    return hypotheses


def _nearest(known: Sequence[str], queries: Sequence[str]) -> list[int]:
    """Index in ``known`` of the nearest sentence of each query."""
    rows, grams, counts = _gram_counts([*known, *queries])
    num_grams = int(grams.max()) + 1
    is_known = rows < len(known)
    documents = torch.bincount(grams[is_known], minlength=num_grams)
    # An n-gram that no known sentence has cannot be shared with one: its weight does not matter.
    weights = counts * torch.log((1 + len(known)) / documents.clamp(min=1)).float()[grams]
    norms = torch.zeros(len(known) + len(queries)).index_add_(0, rows, weights.square()).sqrt().clamp(min=1e-12)
    matrix = torch.sparse_coo_tensor(
        torch.stack([rows[is_known], grams[is_known]]),
        weights[is_known] / norms[rows[is_known]],
        (len(known), num_grams),
        is_coalesced=True,
        check_invariants=False,
    )
    query_rows, query_grams, query_weights = rows[~is_known] - len(known), grams[~is_known], weights[~is_known]
    nearest: list[int] = []
    for first in range(0, len(queries), _BLOCK):
        size = min(_BLOCK, len(queries) - first)
        inside = (query_rows >= first) & (query_rows < first + size)
        dense = torch.zeros(num_grams, size)
        dense[query_grams[inside], query_rows[inside] - first] = query_weights[inside]
        nearest += torch.sparse.mm(matrix, dense).argmax(dim=0).tolist()
    return nearest


def _gram_counts(texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """How often each text has each character n-gram: (text number, n-gram number, count), sorted by text and n-gram."""
    padded = [f" {text.lower()} " for text in texts]
    codes = torch.frombuffer(bytearray("".join(padded).encode("utf-32-le", "surrogatepass")), dtype=torch.int32)
    letters, letter = torch.unique(codes, return_inverse=True)
    text_of = torch.repeat_interleave(torch.tensor([len(text) for text in padded]))
    all_rows, all_grams, offset = [], [], 0
    for order in _ORDERS:
        starts = len(codes) - order + 1
        if starts <= 0:
            continue
        key = torch.zeros(starts, dtype=torch.int64)
        for step in range(order):
            key = key * len(letters) + letter[step : step + starts]
        inside = text_of[:starts] == text_of[order - 1 :]
        _, gram = torch.unique(key[inside], return_inverse=True)
        all_rows.append(text_of[:starts][inside])
        all_grams.append(gram + offset)
        offset += int(gram.max()) + 1 if len(gram) else 0
    cells, counts = torch.unique(torch.cat(all_rows) * offset + torch.cat(all_grams), return_counts=True)
    return cells // offset, cells % offset, counts.float()
