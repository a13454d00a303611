from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.models.transformer import transformer
from repro.tasks.decoding import decode_sentences, greedy_decode

PAD, BOS, EOS, PIECES = 0, 2, 3, 12
SEEDS = (3, 4)
SPECIAL = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}
KINDS = pytest.mark.parametrize(
    "options", [{}, {"split_sublayers": True}, {"d_model": 6, "num_decoder_layers": 1}], ids=["whole", "split", "wide"]
)


def model(seed: int, **options: Any) -> nn.Sequential:
    """With weights large enough that its answers end at different lengths."""
    torch.manual_seed(seed)
    size = {"num_layers": 2, "d_ff": 16, "num_heads": 2, "vocab_size": PIECES, "d_model": 8, "d_head": 4}
    built = nn.Sequential(*(make() for make in transformer(**(size | {"dropout": 0.3} | options)))).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(3.0)
    return built


def next_logits(built: nn.Sequential, source: Tensor, answers: list[list[int]]) -> Tensor:
    """Of the piece after each answer (all of one length): the whole model anew, for one source without padding."""
    with torch.no_grad():
        inputs = torch.tensor([[BOS, *answer] for answer in answers])
        logits: Tensor = built((source.expand(len(answers), -1), inputs))[:, -1]
    return logits


def naive(built: nn.Sequential, source: Tensor, max_length: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < max_length and tokens[-1:] != [EOS]:
        logits = next_logits(built, source, [tokens])[0]
        logits[[PAD, BOS]] = -torch.inf
        tokens.append(int(logits.argmax()))
    return tokens


def sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [
        [*torch.randint(4, PIECES, (length,), generator=generator).tolist(), EOS] for length in (3, 7, 1, 5, 5, 2, 9, 4)
    ]


def padded(rows: list[list[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


@KINDS
@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_equals_the_naive_loop(seed: int, options: dict[str, Any]) -> None:
    built = model(seed, **options).eval()
    limits = torch.arange(8, 16)
    decoded = greedy_decode(built, padded(sources()), max_lengths=limits, **SPECIAL)
    expected = [
        naive(built, torch.tensor(source), limit) for source, limit in zip(sources(), limits.tolist(), strict=True)
    ]
    assert decoded == expected


def test_the_models_of_the_test_end_early_and_late() -> None:
    lengths = {len(naive(model(seed).eval(), torch.tensor(source), 15)) for seed in SEEDS for source in sources()}
    assert min(lengths) < 15
    assert len(lengths) > 1


@pytest.mark.parametrize("beam_size", [1, 3])
def test_dropout_is_off_and_the_mode_comes_back(beam_size: int) -> None:
    built = model(0).train()
    first = decode_sentences(built, sources(), beam_size=beam_size, **SPECIAL)
    assert built.training
    assert torch.is_grad_enabled()
    assert first == decode_sentences(built, sources(), beam_size=beam_size, **SPECIAL)
    assert first == decode_sentences(built.eval(), sources(), beam_size=beam_size, **SPECIAL)
    assert not built.training


@pytest.mark.parametrize("beam_size", [1, 3])
def test_sentences_come_back_in_order_without_their_end_whatever_the_batch(beam_size: int) -> None:
    built = model(1).eval()
    done: list[tuple[int, int]] = []
    answers = decode_sentences(
        built, sources(), beam_size=beam_size, batch_size=3, progress=lambda *at: done.append(at), **SPECIAL
    )
    assert done == [(3, 8), (6, 8), (8, 8)]
    for batch_size in (1, 100):
        assert decode_sentences(built, sources(), beam_size=beam_size, batch_size=batch_size, **SPECIAL) == answers
    if beam_size == 1:
        for source, answer in zip(sources(), answers, strict=True):
            found = naive(built, torch.tensor(source), 2 * len(source) + 10)
            assert answer == [piece for piece in found if piece != EOS]


def test_no_sentence_is_no_answer() -> None:
    assert decode_sentences(model(0), [], **SPECIAL) == []
