"""Translations from the unsplit model, on one device: greedy, or by beam search; both keep keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from repro.models.incremental import IncrementalDecoder
from repro.tasks.beam_search import beam_search

LENGTH_PENALTY = 0.6
"""Exponent of the length penalty of beam search: the published choice of Vaswani et al. 2017 (there with beam 4)."""


def decode_sentences(
    model: nn.Sequential,
    sources: Sequence[Sequence[int]],
    *,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    beam_size: int = 1,
    length_penalty: float = LENGTH_PENALTY,
    batch_size: int = 128,
    device: torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """Answers to many sources, in their order; each may be twice as long as its source and ten tokens more.

    Args:
        model: ``repro.models.transformer`` unsplit: embedding, encoder layers, decoder layers, logits. It is put into
            evaluation mode and back.
        sources: pieces of each sentence, the end piece included.
        bos_id: first input of the decoder, and never part of an answer, as ``pad_id``.
        eos_id: ends a sentence.
        pad_id: the padding token.
        beam_size: hypotheses of a sentence; 1 is greedy.
        length_penalty: exponent of the length penalty of beam search (see ``beam_search.length_penalty``); greedy has
            none.
        batch_size: sentences at a time; those of similar length go together.
        device: of the model; the CPU by default.
        progress: called with how many sentences are done, of how many.

    Returns:
        Pieces up to the end piece, without it.

    Raises:
        UserError: ``beam_size`` or ``length_penalty`` out of range.
    """
    answers: list[list[int]] = [[] for _ in sources]
    by_length = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    special = {"bos_id": bos_id, "eos_id": eos_id, "pad_id": pad_id}
    for begin in range(0, len(by_length), batch_size):
        chosen = by_length[begin : begin + batch_size]
        longest = len(sources[chosen[-1]])
        padded = [[*sources[index], *[pad_id] * (longest - len(sources[index]))] for index in chosen]
        source = torch.tensor(padded, device=device)
        limits = torch.tensor([2 * len(sources[index]) + 10 for index in chosen], device=device)
        if beam_size == 1:
            decoded = greedy_decode(model, source, max_lengths=limits, **special)
        else:
            with evaluating(model):
                found = beam_search(
                    model, source, beam_size=beam_size, exponent=length_penalty, max_lengths=limits, **special
                )
            decoded = [list(hypothesis.tokens) for hypothesis in found]
        for index, row in zip(chosen, decoded, strict=True):
            answers[index] = row[:-1] if row[-1] == eos_id else row
        if progress is not None:
            progress(begin + len(chosen), len(by_length))
    return answers


def greedy_decode(
    model: nn.Sequential, source: Tensor, *, bos_id: int, eos_id: int, pad_id: int, max_lengths: Tensor
) -> list[list[int]]:
    """The most probable next token (of equal ones the lowest), again and again, to the end token or the longest length.

    Sentences that have ended leave the batch; none depends on the others.

    Args:
        model: as for ``decode_sentences``.
        source: tokens (B, S), padded with ``pad_id``.
        bos_id: first input of the decoder, and never part of an answer, as ``pad_id``.
        eos_id: ends a sentence.
        pad_id: the padding token.
        max_lengths: (B,), the most tokens of each answer, the end token included; at least 1.

    Returns:
        Tokens of each answer, without the begin token; one that ended has its end token.
    """
    with evaluating(model):
        decoder = IncrementalDecoder(model, source)
        rows = torch.arange(len(source), device=source.device)
        never = torch.tensor([pad_id, bos_id], device=source.device)
        tokens = torch.full((len(source), 1), bos_id, dtype=torch.int64, device=source.device)
        taken: list[tuple[Tensor, Tensor]] = []
        while len(rows):
            best = decoder.step(tokens)[:, 0].index_fill(-1, never, -torch.inf).argmax(dim=-1)
            taken.append((rows, best))
            going = ((best != eos_id) & (len(taken) < max_lengths)).nonzero().flatten()
            tokens = best[:, None]
            if len(going) < len(rows):
                decoder.keep(going)
                rows, tokens, max_lengths = rows[going], tokens[going], max_lengths[going]
    answers: list[list[int]] = [[] for _ in range(len(source))]
    for numbers, pieces in taken:
        for number, piece in zip(numbers.tolist(), pieces.tolist(), strict=True):
            answers[number].append(piece)
    return answers


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and no gradients; both come back."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
