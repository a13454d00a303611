"""What Transformers are made of: embedding, attention, feed-forward, softmax.

Attention and feed-forward are pre-norm (the norm is on the branch, the residual path is clean), positions are
sinusoidal, and each softmax has a table of its own, so that no parameter is tied across stages. The LayerNorm at the
end of a stack has no parameters: what reads it is a linear layer with bias, which can express them, and with none the
counts are those of Table 1 of the GPipe paper to the last digit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError


@dataclass(frozen=True)
class TransformerSize:
    """What all layers of a Transformer share: widths, and how it starts and is held.

    Attributes:
        d_model: width of the states.
        d_ff: width of the feed-forward layers.
        num_heads: attention heads.
        d_head: channels of one head.
        vocab_size: pieces of the vocabulary.
        dropout: probability of dropout on the embeddings and on what each sub-layer adds.
        ffn_scale: factor of the initial weights of both matrices of a feed-forward sub-layer.
        logit_clip: largest magnitude of a logit; None: no limit.
    """

    d_model: int
    d_ff: int
    num_heads: int
    d_head: int
    vocab_size: int
    dropout: float
    ffn_scale: float = 1.0
    logit_clip: float | None = None

    def __post_init__(self) -> None:
        for name in ("d_model", "d_ff", "num_heads", "d_head", "vocab_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if self.d_model % 2:
            raise UserError(f"d_model={self.d_model} must be even: sinusoidal positions pair a sine with a cosine")
        if not 0.0 <= self.dropout < 1.0:
            raise UserError(f"dropout={self.dropout} must be at least 0 and less than 1")
        if self.logit_clip is not None and not self.logit_clip > 0.0:
            raise UserError(f"logit_clip={self.logit_clip} must be above 0, or null for no limit")


class Embedding(nn.Module):
    """Tokens (B, T) to states (B, T, d_model): table, positions, dropout."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.table = nn.Embedding(size.vocab_size, size.d_model)
        # With the factor sqrt(d_model) of `forward` the states start at the scale of the positions.
        nn.init.normal_(self.table.weight, std=size.d_model**-0.5)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Tokens (B, T) at the positions from `first` on, to states (B, T, d_model)."""
        states = self.table(tokens) * math.sqrt(self.table.embedding_dim)
        embedded: Tensor = self.dropout(states + sinusoidal_positions(states, first))
        return embedded


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
        key, value = self.keys_and_values(normed if memory is None else memory)
        return states + self.read(normed, key, value, mask=mask, causal=causal)

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What can be read of `memory` (B, S, d_model): keys and values (B, heads, S, d_head)."""
        return self._heads(self.key(memory)), self._heads(self.value(memory))

    def read(
        self, normed: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """What the sub-layer adds to the states: `normed` (B, T, d_model) asks `keys_and_values`; see `forward`."""
        attn_mask = None if mask is None else mask[:, None, None, :]
        query = self._heads(self.query(normed))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, is_causal=causal)
        added: Tensor = self.dropout(self.output(attended.transpose(1, 2).flatten(2)))
        return added

    def _heads(self, projected: Tensor) -> Tensor:
        """(B, length, channels) to (B, heads, length, d_head)."""
        return projected.view(*projected.shape[:2], self.num_heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    """A residual sub-layer: states + dropout(linear(relu(linear(norm(states)))))."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.d_model)
        self.expand = _linear(size.d_model, size.d_ff, size.ffn_scale)
        self.contract = _linear(size.d_ff, size.d_model, size.ffn_scale)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, states: Tensor) -> Tensor:
        """States (B, T, d_model) to states."""
        # In place: nothing else reads the wide activations, the largest of the layer.
        added: Tensor = self.dropout(self.contract(F.relu(self.expand(self.norm(states)), inplace=True)))
        return states + added


class Logits(nn.Module):
    """The final norm and the softmax layer, with its own table."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.norm = final_norm(size)
        self.project = _linear(size.d_model, size.vocab_size)
        self.clip = size.logit_clip

    def forward(self, states: Tensor) -> Tensor:
        """States (B, T, d_model) to logits (B, T, vocab_size)."""
        logits: Tensor = self.project(self.norm(states))
        return logits if self.clip is None else logits.clamp(-self.clip, self.clip)


def build_sublayers(names: tuple[str, ...], size: TransformerSize) -> nn.ModuleDict:
    """The sub-layers of one layer by name: `feed_forward`, or attention of any other name."""
    return nn.ModuleDict({name: FeedForward(size) if name == "feed_forward" else Attention(size) for name in names})


def divide_sublayers(names: tuple[str, ...], num_layers: int, split: bool) -> list[tuple[str, ...]]:
    """The sub-layers that each layer of a stack holds: all of them, or one where they are layers of their own."""
    return [(name,) for _ in range(num_layers) for name in names] if split else [names] * num_layers


def final_norm(size: TransformerSize) -> nn.LayerNorm:
    """The norm at the end of a stack, without parameters."""
    return nn.LayerNorm(size.d_model, elementwise_affine=False)


def sinusoidal_positions(states: Tensor, first: int = 0) -> Tensor:
    """Sines and cosines (length, width) of Vaswani et al. 2017 for states (B, length, width), in their dtype.

    Computed in float32 at least: bfloat16 cannot count to 257. The states are at the positions from `first` on.
    """
    length, width = states.shape[1:]
    dtype = torch.promote_types(states.dtype, torch.float32)
    positions = torch.arange(first, first + length, dtype=dtype, device=states.device)[:, None]
    channels = torch.arange(0, width, 2, dtype=dtype, device=states.device)
    angles = positions * torch.exp(channels * (-math.log(10000.0) / width))
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(states.dtype)


def require_layers(name: str, value: int) -> None:
    """Raises a UserError unless there is at least one layer."""
    if value < 1:
        raise UserError(f"{name}={value} must be at least 1")


def _linear(in_features: int, out_features: int, gain: float = 1.0) -> nn.Linear:
    linear = nn.Linear(in_features, out_features)
    nn.init.xavier_uniform_(linear.weight, gain=gain)
    nn.init.zeros_(linear.bias)
    return linear
