"""Near duplicates of sentences, clusters of them, and a split that keeps every cluster on one side."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch

from repro.datasets.cleaning import words_of

NEAR_DUPLICATE = 0.5
"""Word Jaccard (shared words / all words) from which two sentences are near duplicates."""


def overlap_blocks(
    rows: Sequence[frozenset[str]], columns: Sequence[frozenset[str]], block: int = 512
) -> Iterator[tuple[int, torch.Tensor]]:
    """Word Jaccard of every sentence of ``rows`` with every one of ``columns``, in blocks of rows.

    Yields:
        (first row, float32 tensor of shape (rows in the block, len(columns))). A pair without words counts 0.
    """
    numbers = {word: index for index, word in enumerate(sorted(frozenset().union(*rows, *columns)))}
    if not numbers or not rows or not columns:
        return
    sparse = _incidence(columns, numbers)
    column_sizes = torch.tensor([len(words) for words in columns], dtype=torch.float32)
    for first in range(0, len(rows), block):
        part = rows[first : first + block]
        dense = torch.zeros(len(numbers), len(part))
        for index, words in enumerate(part):
            dense[[numbers[word] for word in words], index] = 1.0
        shared = torch.sparse.mm(sparse, dense).T
        row_sizes = torch.tensor([len(words) for words in part], dtype=torch.float32)
        union = row_sizes[:, None] + column_sizes[None, :] - shared
        yield first, shared / union.clamp(min=1.0)


def _incidence(sentences: Sequence[frozenset[str]], numbers: dict[str, int]) -> torch.Tensor:
    """Sentences x words, 1 where the sentence has the word (sparse)."""
    entries = [(row, numbers[word]) for row, words in enumerate(sentences) for word in sorted(words)]
    indices = torch.tensor(entries, dtype=torch.int64).reshape(-1, 2).T
    return torch.sparse_coo_tensor(
        indices, torch.ones(indices.shape[1]), (len(sentences), len(numbers)), check_invariants=False
    ).coalesce()


def find_clusters(sentences: Sequence[str], threshold: float = NEAR_DUPLICATE) -> list[int]:
    """Cluster number of every sentence: the connected components of "word Jaccard >= threshold", exactly.

    Every pair is compared, so two sentences of different clusters are never near duplicates.
    """
    parents = list(range(len(sentences)))

    def find(item: int) -> int:
        while parents[item] != item:
            parents[item] = parents[parents[item]]
            item = parents[item]
        return item

    words = [words_of(sentence) for sentence in sentences]
    for first, jaccard in overlap_blocks(words, words):
        for row, column in (jaccard >= threshold).nonzero().tolist():
            low, high = sorted((find(first + row), find(column)))
            parents[high] = low
    roots = [find(item) for item in range(len(sentences))]
    numbers = {root: number for number, root in enumerate(dict.fromkeys(roots))}
    return [numbers[root] for root in roots]


def split_clusters(
    sentences: Sequence[str],
    clusters: Sequence[int],
    sizes: dict[str, int],
    largest: int,
    seed: int = 0,
    eligible: Sequence[bool] | None = None,
) -> list[str]:
    """Assign whole clusters to held-out parts until each has its size; the rest is ``"train"``.

    Args:
        sentences: the English sentences.
        clusters: cluster number of each.
        sizes: sentences wanted per held-out part, for example ``{"test": 800, "dev": 300}``.
        largest: clusters with more sentences than this always go to training.
        seed: changes which clusters are held out. The order depends on the sentences and the seed only, not on
            the order of the input.
        eligible: only clusters with at least one eligible sentence are held out; all where None.

    Returns:
        The part of every sentence.
    """
    members: dict[int, list[int]] = {}
    for index, cluster in enumerate(clusters):
        members.setdefault(cluster, []).append(index)

    def order(cluster: int) -> str:
        key = min(sentences[index] for index in members[cluster])
        return hashlib.sha256(f"{seed}\t{key}".encode()).hexdigest()

    candidates = [
        cluster
        for cluster, indices in members.items()
        if len(indices) <= largest and (eligible is None or any(eligible[index] for index in indices))
    ]
    parts = ["train"] * len(sentences)
    queue = iter(sorted(candidates, key=order))
    for part, wanted in sizes.items():
        taken = 0
        while taken < wanted and (chosen := next(queue, None)) is not None:
            for index in members[chosen]:
                parts[index] = part
            taken += len(members[chosen])
    return parts


def leakage(held_out: Sequence[str], training: Sequence[str], threshold: float = NEAR_DUPLICATE) -> float:
    """Share of held-out sentences whose nearest training sentence has a word Jaccard of ``threshold`` or more."""
    rows, columns = [words_of(text) for text in held_out], [words_of(text) for text in training]
    near = sum(int((block.amax(dim=1) >= threshold).sum()) for _, block in overlap_blocks(rows, columns))
    return near / len(held_out) if held_out else 0.0
