"""The decoder of T(L, H, A) one position at a time, with the keys and values of earlier positions kept."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from .sublayers import Attention, FeedForward
from .transformer import DecoderLayer, PairEmbedding


class IncrementalDecoder:
    """Decodes a batch of sources, each with one hypothesis or several, without computing anything twice.

    The encoder runs once, and so do the keys and values that cross-attention reads, one copy for all hypotheses of a
    sentence. Each `step` computes one position; self-attention reads the keys and values of the positions before it.

    Args:
        model: `transformer(...)` unsplit, in evaluation mode.
        source: tokens (B, S), padded with the model's `pad_id`.
    """

    def __init__(self, model: nn.Sequential, source: Tensor) -> None:
        layers = list(model)
        decoder = next(index for index, layer in enumerate(layers) if isinstance(layer, DecoderLayer))
        self._embedding = cast(PairEmbedding, layers[0]).embedding
        self._logits = layers[-1]
        self._sublayers = [
            (name, sublayer)
            for layer in layers[decoder:-1]
            for name, sublayer in cast(DecoderLayer, layer).sublayers.items()
        ]
        memory, self._mask, _ = model[:decoder]((source, source[:, :1]))
        # By number of the sub-layer: of the source (B, heads, S, d_head), of the target (B * width, heads, t, d_head).
        self._source = {
            number: cast(Attention, sublayer).keys_and_values(memory)
            for number, (name, sublayer) in enumerate(self._sublayers)
            if name == "cross_attention"
        }
        self._target: dict[int, tuple[Tensor, Tensor]] = {}
        self._position = 0
        self._width = 1

    def step(self, tokens: Tensor) -> Tensor:
        """The next token of each hypothesis (B, width) to the logits (B, width, vocab_size) of the one after it."""
        states = self._embedding(tokens.reshape(-1, 1), self._position).view(*tokens.shape, -1)
        for number, (name, sublayer) in enumerate(self._sublayers):
            match name:
                case "self_attention":
                    states = self._attend_to_target(number, cast(Attention, sublayer), states)
                case "cross_attention":
                    attention = cast(Attention, sublayer)
                    # The hypotheses of a sentence ask as the positions of one row would: they do not see each other.
                    added = attention.read(attention.norm(states), *self._source[number], mask=self._mask)
                    states = states + added
                case _:
                    states = cast(FeedForward, sublayer)(states)
        self._position += 1
        self._width = tokens.shape[1]
        logits: Tensor = self._logits((states, self._mask, states))  # of the boundary it reads the last element only
        return logits

    def reorder(self, parents: Tensor) -> None:
        """Lets hypothesis (b, i) go on from what was hypothesis `parents[b, i]` of sentence b."""
        first = torch.arange(len(parents), device=parents.device)[:, None] * self._width
        self._select_rows((first + parents).flatten())
        self._width = parents.shape[1]

    def keep(self, sentences: Tensor) -> None:
        """Drops all sentences but those with these numbers; the others move up."""
        self._mask = self._mask[sentences]
        self._source = {number: (key[sentences], value[sentences]) for number, (key, value) in self._source.items()}
        within = torch.arange(self._width, device=sentences.device)
        self._select_rows((sentences[:, None] * self._width + within).flatten())

    def _select_rows(self, rows: Tensor) -> None:
        self._target = {number: (key[rows], value[rows]) for number, (key, value) in self._target.items()}

    def _attend_to_target(self, number: int, attention: Attention, states: Tensor) -> Tensor:
        rows = states.flatten(0, 1)[:, None]  # (B * width, 1, d_model): each hypothesis has keys of its own
        normed = attention.norm(rows)
        key, value = attention.keys_and_values(normed)
        if number in self._target:
            earlier_keys, earlier_values = self._target[number]
            key, value = torch.cat([earlier_keys, key], dim=2), torch.cat([earlier_values, value], dim=2)
        self._target[number] = key, value
        return (rows + attention.read(normed, key, value)).view_as(states)
