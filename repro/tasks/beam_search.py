"""Beam search over the encoder-decoder Transformer, on one device, from the unsplit model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repro.errors import UserError
from repro.models.incremental import IncrementalDecoder


@dataclass(frozen=True)
class Hypothesis:
    """An answer.

    Attributes:
        tokens: without the begin token; the last one is the end token if the answer has ended.
        log_probability: sum over ``tokens`` of the natural logarithm of their probabilities.
        score: ``log_probability`` over the length penalty.
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float


def length_penalty(length: int, exponent: float) -> float:
    """What a log-probability is divided by: ((5 + length) / 6)^exponent (Wu et al. 2016, equation 14).

    ``length`` counts the end token. With exponent 0 only the probability counts, which favours short answers.
    """
    return float(((5 + length) / 6) ** exponent)


def beam_search(
    model: nn.Sequential,
    source: Tensor,
    *,
    beam_size: int,
    exponent: float,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_lengths: Tensor,
) -> list[Hypothesis]:
    """The best answer of a beam search for each source.

    At every position the hypotheses of a sentence are extended by all pieces and the extensions are ordered by
    log-probability. Of the best ``beam_size``, those that end are complete; the best ``beam_size`` of all that do not
    end go on. A sentence is done when ``beam_size`` hypotheses are complete, when no hypothesis that goes on can reach
    the score of the best complete one any more, or at its longest length. The best complete hypothesis by score is the
    answer, or where none is complete the best one that is not. With ``beam_size`` 1 this is greedy decoding.

    Nothing depends on what else is in the batch, nor on the device's way of choosing among equals: of equal
    log-probabilities the extension of the better hypothesis comes first, then the piece with the lower number.

    Args:
        model: ``transformer(...)`` unsplit, in evaluation mode.
        source: tokens (B, S), padded with ``pad_id``.
        beam_size: hypotheses of a sentence.
        exponent: see ``length_penalty``; not negative.
        bos_id: first input of the decoder, and never part of an answer, as ``pad_id``.
        eos_id: ends an answer.
        pad_id: fills rows of ``source``.
        max_lengths: (B,), the most tokens of each answer, the end token included; at least 1.

    Raises:
        UserError: ``beam_size`` or ``exponent`` out of range.
    """
    if beam_size < 1:
        raise UserError(f"beam_size={beam_size} must be at least 1")
    if not exponent >= 0:
        raise UserError(f"length_penalty={exponent} must not be negative")
    decoder = IncrementalDecoder(model, source)
    search = _Search(source, max_lengths, bos_id, beam_size, exponent)
    while True:
        logits = decoder.step(search.tokens[:, :, -1])
        pieces, log_probabilities = _best_pieces(logits, min(beam_size + 1, logits.shape[2] - 2), (pad_id, bos_id))
        parents = search.advance(pieces, log_probabilities, eos_id)
        going = search.going()
        if not len(going):
            return search.answers()
        decoder.reorder(parents)
        if len(going) < len(parents):
            decoder.keep(going)
            search.keep(going)


class _Search:
    """The hypotheses of the sentences that are not done, and the best complete one of every sentence."""

    def __init__(self, source: Tensor, max_lengths: Tensor, bos_id: int, beam_size: int, exponent: float) -> None:
        count = len(source)
        self._beam_size = beam_size
        self._exponent = exponent
        self._max_lengths = max_lengths
        largest = [length_penalty(length, exponent) for length in max_lengths.tolist()]
        self._largest_penalties = torch.tensor(largest, dtype=torch.float64, device=source.device)
        self._sentences = torch.arange(count, device=source.device)
        self.tokens = torch.full((count, 1, 1), bos_id, dtype=torch.int64, device=source.device)
        self._scores = torch.zeros(count, 1, dtype=torch.float64, device=source.device)
        self._num_complete = torch.zeros(count, dtype=torch.int64, device=source.device)
        self._best = torch.full((count,), -torch.inf, dtype=torch.float64, device=source.device)
        self._answers: list[Hypothesis | None] = [None] * count

    def advance(self, pieces: Tensor, log_probabilities: Tensor, eos_id: int) -> Tensor:
        """Extends the hypotheses; returns which one (B, new width) each new one goes on from.

        Args:
            pieces: (B, width, k), the most probable ones after each hypothesis, in order.
            log_probabilities: theirs.
            eos_id: ends an answer.
        """
        width, choices = pieces.shape[1:]
        sums, order = (
            (self._scores[:, :, None] + log_probabilities).flatten(1).sort(dim=1, descending=True, stable=True)
        )
        pieces, parents = pieces.flatten(1).gather(1, order), order // choices
        ends = pieces == eos_id
        self._complete(ends[:, : self._beam_size], sums, parents, eos_id)
        # Each hypothesis has one extension at most that ends. A stable sort of False before True keeps the order.
        goes_on = ends.long().argsort(dim=1, stable=True)[:, : min(self._beam_size, width * (choices - 1))]
        parents, pieces, self._scores = (values.gather(1, goes_on) for values in (parents, pieces, sums))
        history = self.tokens.gather(1, parents[:, :, None].expand(-1, -1, self.tokens.shape[2]))
        self.tokens = torch.cat([history, pieces[:, :, None]], dim=2)
        return parents

    def going(self) -> Tensor:
        """The places of the sentences that are not done; the others get their answer."""
        length = self.tokens.shape[2] - 1
        # Sums only fall and penalties only grow, so this is the most that any continuation can reach.
        reachable = self._scores[:, 0] / self._largest_penalties
        full = length >= self._max_lengths
        done = full | (self._num_complete >= self._beam_size) | (reachable <= self._best)
        for place in (full & (self._num_complete == 0)).nonzero().flatten().tolist():
            self._answer(place, self.tokens[place, 0, 1:], float(self._scores[place, 0]))
        return (~done).nonzero().flatten()

    def keep(self, places: Tensor) -> None:
        """Drops all sentences but these."""
        self._sentences, self.tokens, self._scores = (
            values[places] for values in (self._sentences, self.tokens, self._scores)
        )
        self._num_complete, self._best = (values[places] for values in (self._num_complete, self._best))
        self._max_lengths, self._largest_penalties = (
            values[places] for values in (self._max_lengths, self._largest_penalties)
        )

    def answers(self) -> list[Hypothesis]:
        """One for each source; every sentence is done."""
        return [answer for answer in self._answers if answer is not None]

    def _complete(self, ends: Tensor, sums: Tensor, parents: Tensor, eos_id: int) -> None:
        """Takes note of complete hypotheses; those of one position are equally long, so the first is the best."""
        self._num_complete += ends.sum(1)
        penalty = length_penalty(self.tokens.shape[2], self._exponent)
        for place in ends.any(1).nonzero().flatten().tolist():
            first = int(ends[place].long().argmax())
            total = float(sums[place, first])
            if total / penalty > self._best[place]:
                self._best[place] = total / penalty
                history = self.tokens[place, parents[place, first], 1:]
                self._answer(place, torch.cat([history, history.new_tensor([eos_id])]), total)

    def _answer(self, place: int, tokens: Tensor, total: float) -> None:
        score = total / length_penalty(len(tokens), self._exponent)
        self._answers[int(self._sentences[place])] = Hypothesis(tuple(tokens.tolist()), total, score)


def _best_pieces(logits: Tensor, count: int, never: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The ``count`` best pieces after each hypothesis and their log-probabilities, for logits (B, width, V).

    Log-probabilities are float64: rounding must not make unequal logits equal.
    """
    norm = logits.float().logsumexp(-1) if logits.dtype in (torch.float16, torch.bfloat16) else logits.logsumexp(-1)
    allowed = logits.index_fill(-1, torch.tensor(never, device=logits.device), -torch.inf).flatten(0, 1)
    best, pieces = allowed.topk(count)
    # Which of equal pieces `topk` takes is not defined.
    tied = (allowed >= best[:, -1:]).sum(1) > count
    for row in tied.nonzero().flatten().tolist():
        pieces[row] = allowed[row].sort(dim=0, descending=True, stable=True).indices[:count]
    pieces = pieces.sort(1).values
    best, order = allowed.gather(1, pieces).sort(dim=1, descending=True, stable=True)
    pieces = pieces.gather(1, order)
    shape = (*logits.shape[:2], count)
    return pieces.view(shape), best.double().view(shape) - norm.double()[:, :, None]
