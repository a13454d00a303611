"""The full-size models of Tables 2 and 3, and what their layers cost, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.arguments import suggest
from repro.errors import UserError


@dataclass(frozen=True)
class FullModel:
    """A model of the paper at its full size.

    Attributes:
        name: as in the paper's table.
        family: ``"amoebanet"`` or ``"transformer"``.
        num_layers: L.
        num_filters: D, of AmoebaNet.
        side: pixels of an image's side, or tokens of a row.
        batch_size: rows of the mini-batch; Tables 2 and 3 do not state theirs, Table 1 has these.
        accelerator: what its table's row ran on.
    """

    name: str
    family: str
    num_layers: int
    num_filters: int | None
    side: int
    batch_size: int
    accelerator: str

    @property
    def depth(self) -> int:
        """Layers of the sequence: AmoebaNet has stem, reductions and classifier, the Transformer its two ends."""
        return self.num_layers + (6 if self.family == "amoebanet" else 2)


def amoebanet_d(num_filters: int, accelerator: str) -> FullModel:
    """AmoebaNet-D (18, D) on images of 224 pixels, mini-batch 128 (GPipe paper, section 3 and Table 1)."""
    name = f"AmoebaNet-D (18, {num_filters})"
    return FullModel(name, "amoebanet", 18, num_filters, 224, 128, accelerator)


def transformer_l(num_layers: int, accelerator: str) -> FullModel:
    """Transformer-L with the widths, 1024 tokens and mini-batch 32 of Table 1; Tables 2 and 3 state none."""
    return FullModel(f"Transformer-{num_layers}", "transformer", num_layers, None, 1024, 32, accelerator)


def choose_models(models: Sequence[FullModel], families: Sequence[str] | None) -> list[FullModel]:
    """Those of the given families, all of them for None.

    Raises:
        UserError: there is no model of a family.
    """
    known = {model.family: model for model in models}
    for family in families or ():
        if family not in known:
            raise UserError(f"--models {family}: unknown model{suggest(family, known)} (one of {', '.join(known)})")
    return [model for model in models if not families or model.family in families]


@dataclass(frozen=True)
class LayerCosts:
    """One number a layer, all for a single row.

    Attributes:
        forward: of F (and of R), FLOPs or seconds.
        backward: of B, in the same unit.
        boundary_bytes: of what the layer hands on, float32.
        distinct: layers that differ, the only ones that were looked at.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    boundary_bytes: tuple[float, ...]
    distinct: int

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.forward)

    @property
    def both(self) -> tuple[float, ...]:
        """F and B together, for the partition."""
        return tuple(f + b for f, b in zip(self.forward, self.backward, strict=True))

    def at(self, rate: float) -> LayerCosts:
        """FLOPs as seconds, at ``rate`` FLOP a second."""
        forward, backward = (tuple(cost / rate for cost in costs) for costs in (self.forward, self.backward))
        return LayerCosts(forward, backward, self.boundary_bytes, self.distinct)
