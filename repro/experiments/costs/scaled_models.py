"""The scaled-down models whose steps are measured: small enough for one core, and named as what they are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScaledModel:
    """A small relative of a full-size model.

    Attributes:
        family: ``"amoebanet"`` or ``"transformer"``.
        num_layers: L.
        width: filters D of AmoebaNet-D, or width of the Transformer's states; its feed-forward layers have four times
            as many channels.
        side: pixels of an image's side, or tokens of a row.
        num_classes: classes, or tokens of the vocabulary.
        batch_size: rows of the mini-batch.
        num_heads: of attention.
    """

    family: str
    num_layers: int
    width: int
    side: int
    num_classes: int
    batch_size: int
    num_heads: int = 4

    @property
    def name(self) -> str:
        """With its sizes, so that nobody takes it for the paper's."""
        if self.family == "amoebanet":
            return f"scaled-down AmoebaNet-D ({self.num_layers}, {self.width}), {self.side} pixels"
        return f"scaled-down Transformer-{self.num_layers}, width {self.width}, {self.side} tokens"

    @property
    def depth(self) -> int:
        """Layers of the sequence: AmoebaNet has stem, reductions and classifier, the Transformer its two ends."""
        return self.num_layers + (6 if self.family == "amoebanet" else 2)


SCALED = {
    "smoke": (
        ScaledModel("amoebanet", num_layers=3, width=16, side=64, num_classes=10, batch_size=32),
        ScaledModel("transformer", num_layers=4, width=64, side=32, num_classes=500, batch_size=32),
    ),
    "laptop": (
        ScaledModel("amoebanet", num_layers=6, width=32, side=64, num_classes=100, batch_size=64),
        ScaledModel("transformer", num_layers=6, width=192, side=32, num_classes=1000, batch_size=64),
    ),
    "gpu": (
        ScaledModel("amoebanet", num_layers=18, width=128, side=224, num_classes=1000, batch_size=128),
        ScaledModel(
            "transformer", num_layers=22, width=1024, side=1024, num_classes=32000, batch_size=32, num_heads=16
        ),
    ),
}
"""By scale."""
