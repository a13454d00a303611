"""Transformer-L of Table 1, a decoder-only language model, as a sequence of layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ..errors import UserError
from .sublayers import Embedding, Logits, TransformerSize, build_sublayers, divide_sublayers, require_layers

SUBLAYERS = ("self_attention", "feed_forward")


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
    require_layers("num_layers", num_layers)
    return [
        partial(Embedding, size),
        *(partial(CausalLayer, size, names) for names in divide_sublayers(SUBLAYERS, num_layers, split_sublayers)),
        partial(Logits, size),
    ]


class CausalLayer(nn.Module):
    """A layer of the language model: states to states."""

    def __init__(self, size: TransformerSize, sublayers: tuple[str, ...]) -> None:
        super().__init__()
        self.sublayers = build_sublayers(sublayers, size)

    def forward(self, states: Tensor) -> Tensor:
        """States (B, T, d_model) to states."""
        for name, sublayer in self.sublayers.items():
            states = sublayer(states) if name == "feed_forward" else sublayer(states, causal=True)
        return states
