"""Scaled-down models that run here for real: sizes as plain data, their layers, synthetic batches and loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from repro.gpipe.engine import Engine
    from repro.gpipe.mesh import PipelineMesh


@dataclass(frozen=True)
class SmallTransformer:
    """A causal language model with equal layers; embedding and softmax are small.

    Attributes:
        num_layers: L.
        d_model: width of the states.
        d_ff: width of the feed-forward layers.
        num_heads: attention heads.
        vocab_size: tokens.
        length: tokens of a row.
        batch_size: rows of the mini-batch.
    """

    num_layers: int = 8
    d_model: int = 128
    d_ff: int = 512
    num_heads: int = 4
    vocab_size: int = 64
    length: int = 64
    batch_size: int = 8

    @property
    def label(self) -> str:
        """As it is called in rows."""
        return f"Transformer-{self.num_layers} ({self.d_model}, {self.d_ff}, {self.num_heads}), scaled down"

    def factories(self) -> list[Callable[[], nn.Module]]:
        """The layers, without dropout."""
        from repro.models.transformer import transformer_lm

        return transformer_lm(
            num_layers=self.num_layers,
            d_model=self.d_model,
            d_ff=self.d_ff,
            num_heads=self.num_heads,
            vocab_size=self.vocab_size,
            dropout=0.0,
        )

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Tokens and the tokens that follow, (rows, length) each."""
        import torch

        tokens = torch.randint(self.vocab_size, (rows, self.length + 1), generator=torch.Generator().manual_seed(0))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def costs(self) -> list[float]:
        """For the partition: the layers are equal, the ends are small beside them."""
        return [0.0, *[1.0] * self.num_layers, 0.0]


@dataclass(frozen=True)
class SmallAmoebaNet:
    """AmoebaNet-D for small pictures.

    Attributes:
        num_layers: L.
        num_filters: D.
        side: of the pictures, pixels.
        num_classes: outputs.
        batch_size: rows of the mini-batch.
    """

    num_layers: int = 6
    num_filters: int = 16
    side: int = 32
    num_classes: int = 10
    batch_size: int = 8

    @property
    def label(self) -> str:
        """As it is called in rows."""
        return f"AmoebaNet-D ({self.num_layers}, {self.num_filters}) at {self.side} pixels, scaled down"

    def factories(self) -> list[Callable[[], nn.Module]]:
        """The layers."""
        from repro.models.amoebanet import amoebanet

        return amoebanet(
            "D",
            num_layers=self.num_layers,
            num_filters=self.num_filters,
            num_classes=self.num_classes,
            stem="small",
        )

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Pictures (rows, 3, side, side) and classes (rows,)."""
        import torch

        generator = torch.Generator().manual_seed(0)
        pictures = torch.randn(rows, 3, self.side, self.side, generator=generator)
        return pictures, torch.randint(self.num_classes, (rows,), generator=generator)

    def costs(self) -> list[float]:
        """For the partition: operations of each layer."""
        import torch

        from repro.gpipe.profiling import flop_costs

        with torch.device("meta"):
            layers = [make() for make in self.factories()]
        return flop_costs(layers, self.batch(1)[0])


SmallModel = SmallTransformer | SmallAmoebaNet


def cross_entropy(outputs: Any, targets: Any) -> tuple[Tensor, int]:
    """Sum over tokens or pictures, and their number."""
    from torch.nn import functional as F

    flat = outputs.flatten(0, -2)
    return F.cross_entropy(flat, targets.flatten(), reduction="sum"), targets.numel()


def build_engine(
    model: SmallModel,
    counts: Sequence[int],
    *,
    num_micro_batches: int,
    remat: str,
    mesh: PipelineMesh | None,
    device: torch.device,
    trace: bool = True,
) -> Engine:
    """The model's engine on this rank (all stages without a mesh); the same weights wherever a layer is built."""
    import torch

    from repro.gpipe.engine import Engine
    from repro.gpipe.rng import initialisation_seed, preserved

    factories = model.factories()
    begin, end = 0, len(factories)
    if mesh is not None:
        begin = sum(counts[: mesh.pipeline_rank])
        end = begin + counts[mesh.pipeline_rank]
    layers: dict[int, nn.Module] = {}
    with preserved(torch.device("cpu")):
        for index in range(begin, end):
            torch.manual_seed(initialisation_seed(0, index))
            layers[index] = factories[index]().to(device)
    return Engine(
        layers,
        counts,
        num_micro_batches=num_micro_batches,
        loss=cross_entropy,
        remat=remat,
        mesh=mesh,
        devices=[device],
        trace=trace,
    )
