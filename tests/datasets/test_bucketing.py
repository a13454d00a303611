"""Batches of similar lengths: all sentences once, little padding, within the tokens, the same again by seed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, SequentialSampler

from repro.datasets.batches import EncodedPair, collate
from repro.datasets.bucketing import SimilarLengths, TokenBatches, padded_tokens
from repro.datasets.paths import DataError

ITEMS = [EncodedPair((4,) * (1 + i * 7 % 13), (4,) * (1 + i * 5 % 11), i) for i in range(300)]


def padding(batches: Sequence[Sequence[int]]) -> int:
    real = sum(len(item.source) + len(item.target) + 2 for item in ITEMS)
    return sum(padded_tokens([ITEMS[i] for i in batch]) for batch in batches) - real


def test_rows_of_similar_lengths_go_together_and_all_are_there() -> None:
    batches = SimilarLengths(SequentialSampler(ITEMS), ITEMS, 4)
    torch.manual_seed(0)
    first, second = list(batches), list(batches)
    assert len(first) == len(batches) == 75
    assert sorted(i for batch in first for i in batch) == list(range(300))
    assert first != second
    assert padding(first) < padding([list(range(i, i + 4)) for i in range(0, 300, 4)]) / 2


def test_padded_tokens_are_those_of_the_collated_batch() -> None:
    chosen = ITEMS[3:9]
    source, target_in, target_out = collate(chosen)
    assert padded_tokens(chosen) == source.numel() + target_in.numel() == source.numel() + target_out.numel()


@given(
    lengths=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=200),
    batch_tokens=st.integers(42, 400),
    shuffle=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_batches_fit_the_tokens_and_hold_all(lengths: list[tuple[int, int]], batch_tokens: int, shuffle: bool) -> None:
    items = [EncodedPair((4,) * source, (4,) * target, i) for i, (source, target) in enumerate(lengths)]
    batches = list(TokenBatches(SequentialSampler(items), items, batch_tokens, shuffle))
    assert sorted(i for batch in batches for i in batch) == list(range(len(items)))
    assert all(0 < padded_tokens([items[i] for i in batch]) <= batch_tokens for batch in batches)


def test_batches_are_full_and_hold_little_padding() -> None:
    torch.manual_seed(0)
    batches = list(TokenBatches(RandomSampler(ITEMS), ITEMS, 120))
    assert len({len(batch) for batch in batches}) > 3  # many short sentences, or few long ones
    tokens = [padded_tokens([ITEMS[i] for i in batch]) for batch in batches]
    assert sorted(tokens)[len(tokens) // 2] > 0.8 * 120
    assert padding(batches) < 0.2 * sum(tokens)
    by_chance = [list(range(i, i + 6)) for i in range(0, 300, 6)]
    assert padding(batches) < padding(by_chance) / 2


def test_the_order_is_a_function_of_the_seed_whatever_else_is_drawn() -> None:
    def epoch(seed: int, draws: int) -> list[list[int]]:
        torch.manual_seed(seed)
        batches = []
        for batch in TokenBatches(RandomSampler(ITEMS), ITEMS, 60):
            batches.append(batch)
            torch.rand(draws)
        return batches

    assert len(epoch(0, 1)) > 3 * 16  # more than one pool
    assert epoch(0, 1) == epoch(0, 7) != epoch(1, 1)
    lengths = [len(ITEMS[batch[0]].target) for batch in epoch(0, 1)[:16]]
    assert lengths != sorted(lengths)


def test_evaluation_draws_nothing() -> None:
    state = torch.get_rng_state()
    list(TokenBatches(SequentialSampler(ITEMS), ITEMS, 60, shuffle=False))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_pair_that_is_too_long() -> None:
    with pytest.raises(DataError, match=r"batch_tokens=12 is too few for a pair of \d+ \+ \d+ pieces.*max_source"):
        list(TokenBatches(SequentialSampler(ITEMS), ITEMS, 12, shuffle=False))
