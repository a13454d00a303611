from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.errors import UserError
from repro.tasks.beam_search import Hypothesis, beam_search, length_penalty
from repro.tasks.decoding import greedy_decode
from tests.tasks.test_decoding import BOS, EOS, KINDS, PAD, PIECES, SEEDS, SPECIAL, model, next_logits, padded, sources

Found = tuple[tuple[int, ...], float]


def log_probabilities(built: nn.Sequential, source: Tensor, answers: list[tuple[int, ...]]) -> list[list[float]]:
    """Of each piece after each answer, all of one length."""
    found: list[list[float]] = next_logits(built, source, [list(answer) for answer in answers]).log_softmax(-1).tolist()
    return found


def reference(built: nn.Sequential, source: Tensor, beam_size: int, exponent: float, limit: int) -> Hypothesis:
    """Beam search as the docstring has it, with lists, without a cache, and without stopping early by the bound."""
    going: list[Found] = [((), 0.0)]
    complete: list[Found] = []
    while len(complete) < beam_size and len(going[0][0]) < limit:
        values = log_probabilities(built, source, [tokens for tokens, _ in going])
        extended = [
            ((*tokens, piece), total + value)
            for (tokens, total), row in zip(going, values, strict=True)
            for piece, value in enumerate(row)
            if piece not in (PAD, BOS)
        ]
        extended.sort(key=lambda found: -found[1])
        complete += [found for found in extended[:beam_size] if found[0][-1] == EOS]
        going = [found for found in extended if found[0][-1] != EOS][:beam_size]
    tokens, total = max(complete or going[:1], key=lambda found: found[1] / length_penalty(len(found[0]), exponent))
    return Hypothesis(tokens, total, total / length_penalty(len(tokens), exponent))


def search(built: nn.Sequential, source: Tensor, beam_size: int, exponent: float, limits: Any) -> list[Hypothesis]:
    with torch.no_grad():
        return beam_search(
            built, source, beam_size=beam_size, exponent=exponent, max_lengths=torch.as_tensor(limits), **SPECIAL
        )


@KINDS
@pytest.mark.parametrize(("beam_size", "exponent"), [(2, 0.0), (4, 0.6), (5, 2.0)])
def test_equals_the_search_without_a_cache(options: dict[str, Any], beam_size: int, exponent: float) -> None:
    for seed in SEEDS:
        built = model(seed, **options).eval()
        limits = list(range(4, 12))
        found = search(built, padded(sources()), beam_size, exponent, limits)
        for hypothesis, source, limit in zip(found, sources(), limits, strict=True):
            expected = reference(built, torch.tensor(source), beam_size, exponent, limit)
            assert hypothesis.tokens == expected.tokens
            assert hypothesis.log_probability == pytest.approx(expected.log_probability, abs=1e-9)
            assert hypothesis.score == pytest.approx(expected.score, abs=1e-9)


@KINDS
def test_beam_1_is_greedy(options: dict[str, Any]) -> None:
    for seed in SEEDS:
        built, limits = model(seed, **options).eval(), torch.arange(6, 14)
        greedy = greedy_decode(built, padded(sources()), max_lengths=limits, **SPECIAL)
        assert [list(found.tokens) for found in search(built, padded(sources()), 1, 0.6, limits)] == greedy


@pytest.mark.parametrize("exponent", [0.0, 0.6, 3.0])
def test_a_beam_that_holds_everything_finds_the_best_of_all_answers(exponent: float) -> None:
    """Brute force: 3 pieces and the end, all answers of at most 4 tokens."""
    limit, differs = 4, False
    for seed in range(3):
        built = model(seed, vocab_size=6).eval()
        source = torch.tensor([4, 1, 5, EOS])
        answers: list[Hypothesis] = []
        sums: dict[tuple[int, ...], float] = {(): 0.0}
        for length in range(1, limit + 1):
            prefixes = list(sums)
            for prefix, values in zip(prefixes, log_probabilities(built, source, prefixes), strict=True):
                total = sums.pop(prefix)
                score = (total + values[EOS]) / length_penalty(length, exponent)
                answers.append(Hypothesis((*prefix, EOS), total + values[EOS], score))
                sums |= {(*prefix, piece): total + values[piece] for piece in (1, 4, 5)}
        assert len(answers) == 1 + 3 + 9 + 27
        best = max(answers, key=lambda answer: answer.score)
        (found,) = search(built, source[None], 200, exponent, [limit])
        assert found.tokens == best.tokens
        assert found.score == pytest.approx(best.score, abs=1e-9)
        (greedy,) = search(built, source[None], 1, exponent, [limit])
        differs |= greedy.tokens != found.tokens
    assert differs  # or the test would not tell a beam from none


def test_a_larger_length_penalty_gives_longer_answers() -> None:
    lengths = []
    for exponent in (0.0, 1.0, 4.0):
        found = [
            hypothesis
            for seed in SEEDS
            for hypothesis in search(model(seed).eval(), padded(sources()), 4, exponent, [15] * 8)
        ]
        lengths.append(sum(len(hypothesis.tokens) for hypothesis in found))
    assert lengths[0] < lengths[2]
    assert lengths == sorted(lengths)


def test_equal_pieces_are_taken_in_order() -> None:
    """With all logits equal: the lowest pieces first; the end (3) comes after the unknown piece (1)."""
    built = model(0).eval()
    with torch.no_grad():
        for parameter in built[-1].parameters():
            parameter.zero_()
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        found = search(built.to(dtype), padded(sources()), 4, 0.0, [5] * 8)
        assert {hypothesis.tokens for hypothesis in found} == {(EOS,)}
        (one,) = {hypothesis.tokens for hypothesis in search(built, padded(sources()), 1, 0.0, [3] * 8)}
        assert one == (1, 1, 1)
    assert found[0].log_probability == pytest.approx(-torch.tensor(float(PIECES)).log().item(), abs=1e-6)


@pytest.mark.parametrize(
    ("beam_size", "exponent", "message"),
    [(0, 0.6, "beam_size=0"), (2, -0.1, "length_penalty=-0.1"), (2, float("nan"), "length_penalty=nan")],
)
def test_wrong_options(beam_size: int, exponent: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        search(model(0), padded(sources()), beam_size, exponent, [4] * 8)


def test_length_penalty() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 1.0) == 2.0
    assert length_penalty(7, 0.0) == 1.0
