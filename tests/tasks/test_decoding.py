from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from repro.models.transformer import transformer
from repro.tasks.decoding import decode_sentences, greedy_decode

PAD, BOS, EOS, PIECES = 0, 2, 3, 12
SPECIAL = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}


def model(seed: int, split: bool = False) -> nn.Sequential:
    """With weights large enough that its answers end at different lengths."""
    torch.manual_seed(seed)
    factories = transformer(
        num_layers=2, d_ff=16, num_heads=2, vocab_size=PIECES, d_model=8, d_head=4, dropout=0.3, split_sublayers=split
    )
    built = nn.Sequential(*(make() for make in factories)).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(3.0)
    return built


def naive(built: nn.Sequential, source: Tensor, max_length: int) -> list[int]:
    """One sentence without padding, the whole model anew for each token."""
    tokens = [BOS]
    while len(tokens) <= max_length:
        with torch.no_grad():
            logits = built((source[None], torch.tensor([tokens])))
        tokens.append(int(logits[0, -1].argmax()))
        if tokens[-1] == EOS:
            break
    return tokens[1:]


def sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [
        [*torch.randint(4, PIECES, (length,), generator=generator).tolist(), EOS] for length in (3, 7, 1, 5, 5, 2, 9, 4)
    ]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_naive_loop(seed: int, split: bool) -> None:
    built = model(seed, split).eval()
    rows = [torch.tensor(source) for source in sources()]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    decoded = greedy_decode(built, padded, max_length=15, **SPECIAL).tolist()
    expected = [naive(built, row, 15) for row in rows]
    longest = max(map(len, expected))
    assert decoded == [[*row, *[PAD] * (longest - len(row))] for row in expected]


def test_the_models_of_the_test_end_early_and_late() -> None:
    lengths = {len(naive(model(seed).eval(), torch.tensor(source), 15)) for seed in range(4) for source in sources()}
    assert min(lengths) < 15
    assert len(lengths) > 1


def test_dropout_is_off_and_the_mode_comes_back() -> None:
    built = model(0).train()
    source = torch.tensor([sources()[0]])
    first = greedy_decode(built, source, max_length=15, **SPECIAL)
    assert built.training
    assert first.tolist() == greedy_decode(built, source, max_length=15, **SPECIAL).tolist()
    assert not greedy_decode(built.eval(), source, max_length=15, **SPECIAL).requires_grad
    assert not built.training


@pytest.mark.parametrize("batch_size", [1, 100])
def test_sentences_come_back_in_order_without_their_end(batch_size: int) -> None:
    built = model(1).eval()
    longest = max(map(len, sources()))
    for source, answer in zip(
        sources(), decode_sentences(built, sources(), batch_size=batch_size, **SPECIAL), strict=True
    ):
        limit = 2 * (len(source) if batch_size == 1 else longest) + 10
        assert answer == [piece for piece in naive(built, torch.tensor(source), limit) if piece != EOS]
