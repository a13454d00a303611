"""Clusters equal those of a comparison of all pairs, and never end up on two sides of the split."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.datasets.cleaning import words_of
from repro.datasets.clusters import find_clusters, leakage, overlap_blocks, split_clusters

SENTENCES = st.lists(
    st.lists(st.sampled_from("abcdefg"), min_size=0, max_size=4).map(" ".join), min_size=1, max_size=12
)


def jaccard(first: str, second: str) -> float:
    a, b = words_of(first), words_of(second)
    return len(a & b) / len(a | b) if a | b else 0.0


def brute_force_clusters(sentences: list[str], threshold: float) -> list[int]:
    """Spread the smaller label along near duplicates until nothing changes."""
    labels = list(range(len(sentences)))
    changed = True
    while changed:
        changed = False
        for i, first in enumerate(sentences):
            for j, second in enumerate(sentences):
                if jaccard(first, second) >= threshold and labels[j] > labels[i]:
                    labels[j] = labels[i]
                    changed = True
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return [numbers[label] for label in labels]


@given(SENTENCES, st.sampled_from([0.3, 0.5, 0.8]))
@settings(max_examples=60, deadline=None)
def test_clusters_equal_brute_force(sentences: list[str], threshold: float) -> None:
    assert find_clusters(sentences, threshold) == brute_force_clusters(sentences, threshold)


def test_overlap_does_not_depend_on_the_block() -> None:
    rows = [words_of(text) for text in ("a b c", "a d", "", "e")]
    columns = [words_of(text) for text in ("a b", "e", "f g")]
    for block in (1, 3, 100):
        found = {
            first + i: row.tolist()
            for first, part in overlap_blocks(rows, columns, block)
            for i, row in enumerate(part)
        }
        assert [found[i] for i in range(4)] == [
            pytest.approx([2 / 3, 0, 0]),
            pytest.approx([1 / 3, 0, 0]),
            [0, 0, 0],
            [0, 1, 0],
        ]


@given(SENTENCES, st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_split_leaks_nothing(sentences: list[str], seed: int) -> None:
    sentences = sorted(set(sentences))
    clusters = find_clusters(sentences)
    parts = split_clusters(sentences, clusters, {"test": 2, "dev": 1}, largest=3, seed=seed)
    for cluster in set(clusters):
        assert len({part for part, its in zip(parts, clusters, strict=True) if its == cluster}) == 1
    by_part = {
        name: [s for s, part in zip(sentences, parts, strict=True) if part == name] for name in ("train", "test", "dev")
    }
    assert leakage(by_part["test"], by_part["train"]) == leakage(by_part["dev"], by_part["train"]) == 0.0
    assert leakage(by_part["dev"], by_part["test"]) == 0.0


def test_split_sizes_and_large_clusters() -> None:
    sentences = [f"a{i} b{i} c{i}" for i in range(50)] + [
        "one two three",
        "one two four",
        "one two five",
        "one two six",
    ]
    clusters = find_clusters(sentences)
    parts = split_clusters(sentences, clusters, {"test": 10, "dev": 5}, largest=3)
    assert Counter(parts) == {"test": 10, "dev": 5, "train": 39}
    assert parts[-4:] == ["train"] * 4


def test_split_does_not_depend_on_order_and_does_on_seed() -> None:
    sentences = [f"a{i} b{i} c{i}" for i in range(40)]

    def held_out(order: list[str], seed: int) -> set[str]:
        parts = split_clusters(order, find_clusters(order), {"test": 8}, largest=3, seed=seed)
        return {sentence for sentence, part in zip(order, parts, strict=True) if part == "test"}

    assert held_out(sentences, 0) == held_out(sentences[::-1], 0) != held_out(sentences, 1)


def test_only_eligible_clusters_are_held_out() -> None:
    sentences = [f"a{i} b{i} c{i}" for i in range(10)]
    eligible = [i < 3 for i in range(10)]
    parts = split_clusters(sentences, find_clusters(sentences), {"test": 9}, largest=3, eligible=eligible)
    assert parts == ["test"] * 3 + ["train"] * 7


def test_leakage_counts_near_duplicates() -> None:
    assert leakage(["the red house", "a green tree"], ["the red car", "blue sky here"]) == 0.5
    assert leakage([], ["a"]) == leakage(["a"], []) == 0.0
