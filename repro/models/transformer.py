"""The encoder-decoder Transformer T(L, H, A) of the translation experiments as a sequence of layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ..errors import UserError
from .language_model import transformer_lm
from .sublayers import (
    Embedding,
    Logits,
    TransformerSize,
    build_sublayers,
    divide_sublayers,
    final_norm,
    require_layers,
    sinusoidal_positions,
)

__all__ = ["DecoderLayer", "EncoderLayer", "PairEmbedding", "sinusoidal_positions", "transformer", "transformer_lm"]

# Source states (B, S, d_model), source mask (B, S), target states (B, T, d_model).
Boundary = tuple[Tensor, Tensor, Tensor]

ENCODER_SUBLAYERS = ("self_attention", "feed_forward")
DECODER_SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")


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
    scale_ffn_init: bool = False,
    logit_clip: float | None = None,
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
        scale_ffn_init: for depth (section 5): start the feed-forward sub-layers smaller the more layers there are. The
            paper scales their initialisation down "by the number of layers", after Zhang et al. 2019 (Fixup), and gives
            no rule; here both matrices are multiplied by (L_encoder + L_decoder)^-1/2. That is Fixup's rule
            L^(-1/(2m-2)) for a branch of m = 2 matrices, and what the branch adds starts divided by the number of
            layers, as the sentence of the paper has it.
        logit_clip: for depth (section 5): logits beyond this magnitude become this magnitude, and pass no gradient.
            The threshold is not published. None: no limit.

    Raises:
        UserError: for sizes out of range.
    """
    num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
    require_layers("num_layers", num_layers)
    require_layers("num_decoder_layers", num_decoder_layers)
    ffn_scale = (num_layers + num_decoder_layers) ** -0.5 if scale_ffn_init else 1.0
    size = TransformerSize(d_model, d_ff, num_heads, d_head, vocab_size, dropout, ffn_scale, logit_clip)
    if not 0 <= pad_id < vocab_size:
        raise UserError(f"pad_id={pad_id} is not a token of the vocabulary: it must be in 0 .. {vocab_size - 1}")
    encoder = divide_sublayers(ENCODER_SUBLAYERS, num_layers, split_sublayers)
    decoder = divide_sublayers(DECODER_SUBLAYERS, num_decoder_layers, split_sublayers)
    return [
        partial(PairEmbedding, size, pad_id=pad_id),
        *(partial(EncoderLayer, size, names, last=index == len(encoder) - 1) for index, names in enumerate(encoder)),
        *(partial(DecoderLayer, size, names) for names in decoder),
        partial(TargetLogits, size),
    ]


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
        self.sublayers = build_sublayers(sublayers, size)
        self.norm = final_norm(size) if last else nn.Identity()

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
        self.sublayers = build_sublayers(sublayers, size)

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


class TargetLogits(Logits):
    """The last layer of the encoder-decoder: logits of the target states; the source states end here."""

    def forward(self, boundary: Boundary) -> Tensor:  # type: ignore[override]
        """The boundary to logits (B, T, vocab_size)."""
        return super().forward(boundary[2])
