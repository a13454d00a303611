"""Transformers as a sequence of layers: the encoder-decoder T(L, H, A) and the decoder-only Transformer-L.

Attention and feed-forward are pre-norm (the norm is on the branch, the residual path is clean), positions are
sinusoidal, and each softmax has a table of its own, so that no parameter is tied across stages. The LayerNorm at the
end of a stack has no parameters: what reads it is a linear layer with bias, which can express them, and with none the
counts are those of Table 1 of the GPipe paper to the last digit (50,358,272 L + 131,104,000 for Transformer-L).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError

# Source states (B, S, d_model), source mask (B, S), target states (B, T, d_model).
Boundary = tuple[Tensor, Tensor, Tensor]

ENCODER_SUBLAYERS = ("self_attention", "feed_forward")
DECODER_SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")


@dataclass(frozen=True)
class TransformerSize:
    """Widths that all layers of a Transformer share, and the probability of dropout."""

    d_model: int
    d_ff: int
    num_heads: int
    d_head: int
    vocab_size: int
    dropout: float

    def __post_init__(self) -> None:
        for name in ("d_model", "d_ff", "num_heads", "d_head", "vocab_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if self.d_model % 2:
            raise UserError(f"d_model={self.d_model} must be even: sinusoidal positions pair a sine with a cosine")
        if not 0.0 <= self.dropout < 1.0:
            raise UserError(f"dropout={self.dropout} must be at least 0 and less than 1")


def transformer(
    *,
    num_layers: int,
    d_ff: int,
    num_heads: int,
    vocab_size: int = 64000,
    d_model: int = 1024,
    d_head: int = 64,
    num_decoder_layers: int | None = None,
    dropout: float = 0.1,
    pad_id: int = 0,
    split_sublayers: bool = False,
) -> list[Callable[[], nn.Module]]:
    """The encoder-decoder T(L, H, A) of the translation experiments, as zero-argument factories, one for each layer.

    `nn.Sequential(*(make() for make in factories))` is the whole model: `(source tokens (B, S), decoder input tokens
    (B, T))`, both int64, in; logits (B, T, vocab_size) out. Layer 0 embeds both sides with one table, then come the
    encoder and the decoder; between layers goes `(source states (B, S, d_model), source mask (B, S), target states
    (B, T, d_model))`, where the mask is true at the positions that attention may read.

    Source positions that hold `pad_id` are ignored. Target positions see themselves and what is left of them, so
    padding there belongs at the end, where the loss leaves it out; a decoder input may start with any token.

    Args:
        num_layers: L, the number of encoder layers, and of decoder layers unless `num_decoder_layers` says otherwise.
        d_ff: H, the width of the feed-forward layers.
        num_heads: A; attention has `d_head * num_heads` channels (64 A in the paper), whatever `d_model` is.
        vocab_size: size of the vocabulary that source and target share.
        d_model: width of the states, 1024 throughout the paper.
        d_head: channels of one head.
        num_decoder_layers: number of decoder layers.
        dropout: probability of dropout on the embeddings and on what each sub-layer adds.
        pad_id: the padding token.
        split_sublayers: whether attention, cross-attention and feed-forward are layers of their own: 5 L + 2 smaller
            layers in place of 2 L + 2.

    Raises:
        UserError: for sizes out of range.
    """
    size = TransformerSize(d_model, d_ff, num_heads, d_head, vocab_size, dropout)
    num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
    _require_layers("num_layers", num_layers)
    _require_layers("num_decoder_layers", num_decoder_layers)
    if not 0 <= pad_id < vocab_size:
        raise UserError(f"pad_id={pad_id} is not a token of the vocabulary: it must be in 0 .. {vocab_size - 1}")
    encoder = _sublayers(ENCODER_SUBLAYERS, num_layers, split_sublayers)
    decoder = _sublayers(DECODER_SUBLAYERS, num_decoder_layers, split_sublayers)
    return [
        partial(PairEmbedding, size, pad_id=pad_id),
        *(partial(EncoderLayer, size, names, last=index == len(encoder) - 1) for index, names in enumerate(encoder)),
        *(partial(DecoderLayer, size, names) for names in decoder),
        partial(TargetLogits, size),
    ]


def transformer_lm(
    *,
    num_layers: int,
    d_model: int = 2048,
    d_ff: int = 8192,
    num_heads: int = 32,
    vocab_size: int = 32000,
    d_head: int | None = None,
    dropout: float = 0.1,
    split_sublayers: bool = False,
) -> list[Callable[[], nn.Module]]:
    """Transformer-L of Table 1, a decoder-only language model, as zero-argument factories, one for each layer.

    `nn.Sequential(*(make() for make in factories))` is the whole model: tokens (B, T) int64 in, logits (B, T,
    vocab_size) out, position t seeing tokens 0 to t. Between layers go the states (B, T, d_model). Padding belongs at
    the end of a row, where the loss leaves it out.

    Args:
        num_layers: L, the number of layers; the sequence has L + 2, with embedding and softmax.
        d_model: width of the states.
        d_ff: width of the feed-forward layers.
        num_heads: attention heads.
        vocab_size: size of the vocabulary; embedding and softmax have a table each.
        d_head: channels of one head, `d_model / num_heads` unless given.
        dropout: probability of dropout on the embeddings and on what each sub-layer adds.
        split_sublayers: whether attention and feed-forward are layers of their own: 2 L + 2 in all.

    Raises:
        UserError: for sizes out of range.
    """
    if d_head is None:
        if num_heads < 1 or d_model % num_heads:
            raise UserError(f"d_model={d_model} is not a multiple of num_heads={num_heads}; change one or set d_head")
        d_head = d_model // num_heads
    size = TransformerSize(d_model, d_ff, num_heads, d_head, vocab_size, dropout)
    _require_layers("num_layers", num_layers)
    return [
        partial(Embedding, size),
        *(partial(CausalLayer, size, names) for names in _sublayers(ENCODER_SUBLAYERS, num_layers, split_sublayers)),
        partial(Logits, size),
    ]


class Embedding(nn.Module):
    """Tokens (B, T) to states (B, T, d_model): table, positions, dropout."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.table = nn.Embedding(size.vocab_size, size.d_model)
        # With the factor sqrt(d_model) of `forward` the states start at the scale of the positions.
        nn.init.normal_(self.table.weight, std=size.d_model**-0.5)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to states (B, T, d_model)."""
        states = self.table(tokens) * math.sqrt(self.table.embedding_dim)
        embedded: Tensor = self.dropout(states + sinusoidal_positions(states))
        return embedded


class PairEmbedding(nn.Module):
    """The first layer of the encoder-decoder: embeds source and target with one table, and marks the padding."""

    def __init__(self, size: TransformerSize, *, pad_id: int) -> None:
        super().__init__()
        self.embedding = Embedding(size)
        self.pad_id = pad_id

    def forward(self, tokens: tuple[Tensor, Tensor]) -> Boundary:
        """Source tokens (B, S) and decoder input tokens (B, T) to the boundary."""
        source, target = tokens
        mask = source != self.pad_id
        # A row of nothing but padding attends to all of it: softmax over no position at all would be NaN.
        mask = mask | ~mask.any(dim=1, keepdim=True)
        return self.embedding(source), mask, self.embedding(target)


class EncoderLayer(nn.Module):
    """Sub-layers that transform the source states; the last layer of the encoder ends in a norm."""

    def __init__(self, size: TransformerSize, sublayers: tuple[str, ...], *, last: bool) -> None:
        super().__init__()
        self.sublayers = _build(sublayers, size)
        self.norm = _final_norm(size) if last else nn.Identity()

    def forward(self, boundary: Boundary) -> Boundary:
        """The boundary with new source states."""
        source, mask, target = boundary
        for name, sublayer in self.sublayers.items():
            source = sublayer(source) if name == "feed_forward" else sublayer(source, mask=mask)
        return self.norm(source), mask, target


class DecoderLayer(nn.Module):
    """Sub-layers that transform the target states and, in cross-attention, read the source states."""

    def __init__(self, size: TransformerSize, sublayers: tuple[str, ...]) -> None:
        super().__init__()
        self.sublayers = _build(sublayers, size)

    def forward(self, boundary: Boundary) -> Boundary:
        """The boundary with new target states."""
        source, mask, target = boundary
        for name, sublayer in self.sublayers.items():
            match name:
                case "self_attention":
                    target = sublayer(target, causal=True)
                case "cross_attention":
                    target = sublayer(target, memory=source, mask=mask)
                case _:
                    target = sublayer(target)
        return source, mask, target


class CausalLayer(nn.Module):
    """A layer of the language model: states to states."""

    def __init__(self, size: TransformerSize, sublayers: tuple[str, ...]) -> None:
        super().__init__()
        self.sublayers = _build(sublayers, size)

    def forward(self, states: Tensor) -> Tensor:
        """States (B, T, d_model) to states."""
        for name, sublayer in self.sublayers.items():
            states = sublayer(states) if name == "feed_forward" else sublayer(states, causal=True)
        return states


class Logits(nn.Module):
    """The final norm and the softmax layer, with its own table."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.norm = _final_norm(size)
        self.project = _linear(size.d_model, size.vocab_size)

    def forward(self, states: Tensor) -> Tensor:
        """States (B, T, d_model) to logits (B, T, vocab_size)."""
        logits: Tensor = self.project(self.norm(states))
        return logits


class TargetLogits(Logits):
    """The last layer of the encoder-decoder: logits of the target states; the source states end here."""

    def forward(self, boundary: Boundary) -> Tensor:  # type: ignore[override]
        """The boundary to logits (B, T, vocab_size)."""
        return super().forward(boundary[2])


class Attention(nn.Module):
    """A residual sub-layer: states + dropout(attention(norm(states))), over the states themselves or over `memory`."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        channels = size.num_heads * size.d_head
        self.num_heads = size.num_heads
        self.norm = nn.LayerNorm(size.d_model)
        self.query = _linear(size.d_model, channels)
        self.key = _linear(size.d_model, channels)
        self.value = _linear(size.d_model, channels)
        self.output = _linear(channels, size.d_model)
        self.dropout = nn.Dropout(size.dropout)

    def forward(
        self, states: Tensor, *, memory: Tensor | None = None, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """States (B, T, d_model) to states.

        Args:
            states: what asks, and what the result is added to.
            memory: states (B, S, d_model) that are read in place of the normed `states`.
            mask: (B, S), true at the positions that may be read.
            causal: whether a position reads only itself and what is left of it.
        """
        normed = self.norm(states)
        memory = normed if memory is None else memory
        # (B, length, channels) -> (B, heads, length, d_head)
        query, key, value = (
            projected.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for projected in (self.query(normed), self.key(memory), self.value(memory))
        )
        attn_mask = None if mask is None else mask[:, None, None, :]
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, is_causal=causal)
        added: Tensor = self.dropout(self.output(attended.transpose(1, 2).flatten(2)))
        return states + added


class FeedForward(nn.Module):
    """A residual sub-layer: states + dropout(linear(relu(linear(norm(states)))))."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.d_model)
        self.expand = _linear(size.d_model, size.d_ff)
        self.contract = _linear(size.d_ff, size.d_model)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, states: Tensor) -> Tensor:
        """States (B, T, d_model) to states."""
        # In place: nothing else reads the wide activations, the largest of the layer.
        added: Tensor = self.dropout(self.contract(F.relu(self.expand(self.norm(states)), inplace=True)))
        return states + added


def sinusoidal_positions(states: Tensor) -> Tensor:
    """Sines and cosines (length, width) of Vaswani et al. 2017 for states (B, length, width), in their dtype.

    Computed in float32 at least: bfloat16 cannot count to 257.
    """
    length, width = states.shape[1:]
    dtype = torch.promote_types(states.dtype, torch.float32)
    positions = torch.arange(length, dtype=dtype, device=states.device)[:, None]
    channels = torch.arange(0, width, 2, dtype=dtype, device=states.device)
    angles = positions * torch.exp(channels * (-math.log(10000.0) / width))
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(states.dtype)


def _sublayers(names: tuple[str, ...], num_layers: int, split: bool) -> list[tuple[str, ...]]:
    """The sub-layers that each layer of a stack holds: all of them, or one."""
    return [(name,) for _ in range(num_layers) for name in names] if split else [names] * num_layers


def _build(names: tuple[str, ...], size: TransformerSize) -> nn.ModuleDict:
    return nn.ModuleDict({name: FeedForward(size) if name == "feed_forward" else Attention(size) for name in names})


def _linear(in_features: int, out_features: int) -> nn.Linear:
    linear = nn.Linear(in_features, out_features)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def _final_norm(size: TransformerSize) -> nn.LayerNorm:
    return nn.LayerNorm(size.d_model, elementwise_affine=False)


def _require_layers(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name}={value} must be at least 1")
