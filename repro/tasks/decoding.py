"""Greedy decoding of the encoder-decoder Transformer, on one device, from the unsplit model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from repro.models.transformer import DecoderLayer, PairEmbedding


@torch.no_grad()
def greedy_decode(
    model: nn.Sequential, source: Tensor, *, bos_id: int, eos_id: int, pad_id: int, max_length: int
) -> Tensor:
    """The most probable next token, again and again, until the end token or ``max_length`` tokens.

    The encoder runs once for the batch. Sentences that have ended leave the batch, so every step works on rows of the
    same length and no padding enters the decoder.

    Args:
        model: ``repro.models.transformer`` unsplit: embedding, encoder layers, decoder layers, logits. It is put into
            evaluation mode and back.
        source: tokens (B, S), padded with ``pad_id``.
        bos_id: first input of the decoder.
        eos_id: ends a sentence.
        pad_id: fills a row behind its end.
        max_length: most tokens of an answer, the end token included.

    Returns:
        Tokens (B, T) with T <= ``max_length``, without the begin token; a row that ended has its end token.
    """
    embed = model[0]
    assert isinstance(embed, PairEmbedding)
    layers = list(model)
    decoder = next(index for index, layer in enumerate(layers) if isinstance(layer, DecoderLayer))
    answers = torch.full((len(source), max_length), pad_id, dtype=torch.int64, device=source.device)
    was_training = model.training
    model.eval()
    try:
        tokens = torch.full((len(source), 1), bos_id, dtype=torch.int64, device=source.device)
        memory, mask, _ = model[:decoder]((source, tokens))
        rows = torch.arange(len(source), device=source.device)
        for position in range(max_length):
            _, _, states = model[decoder:-1]((memory, mask, embed.embedding(tokens)))
            best = model[-1]((memory, mask, states[:, -1:]))[:, 0].argmax(dim=-1)
            answers[rows, position] = best
            going = best != eos_id
            if not going.any():
                return answers[:, : position + 1]
            rows, memory, mask = rows[going], memory[going], mask[going]
            tokens = torch.cat([tokens[going], best[going, None]], dim=1)
    finally:
        model.train(was_training)
    return answers


def decode_sentences(
    model: nn.Sequential,
    sources: Sequence[Sequence[int]],
    *,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    batch_size: int = 128,
    device: torch.device | None = None,
) -> list[list[int]]:
    """Greedy answers to many sources, in their order; each may be twice as long as its source and ten tokens more.

    Args:
        model: as for ``greedy_decode``.
        sources: pieces of each sentence, the end piece included.
        bos_id: as for ``greedy_decode``, like ``eos_id`` and ``pad_id``.
        batch_size: sentences at a time; those of similar length go together.
        device: of the model; the CPU by default.

    Returns:
        Pieces up to the end piece, without it.
    """
    answers: list[list[int]] = [[] for _ in sources]
    by_length = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    for begin in range(0, len(by_length), batch_size):
        chosen = by_length[begin : begin + batch_size]
        longest = len(sources[chosen[-1]])
        padded = [[*sources[index], *[pad_id] * (longest - len(sources[index]))] for index in chosen]
        decoded = greedy_decode(
            model,
            torch.tensor(padded, device=device),
            bos_id=bos_id,
            eos_id=eos_id,
            pad_id=pad_id,
            max_length=2 * longest + 10,
        )
        for index, row in zip(chosen, decoded.tolist(), strict=True):
            answers[index] = row[: row.index(eos_id)] if eos_id in row else [piece for piece in row if piece != pad_id]
    return answers
