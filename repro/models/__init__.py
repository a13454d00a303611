"""The models of the paper as sequences of layers; they know neither trainer nor pipeline.

Each function returns zero-argument factories, one for each layer, so that a rank of a pipeline builds only its own
layers; `nn.Sequential(*(make() for make in factories))` is the unsplit model. A layer takes and returns one value: a
tensor or a flat tuple of tensors and None. Factories can be pickled, build on any device (`with torch.device("meta")`)
and draw initial weights from PyTorch's default generator only.
"""

from __future__ import annotations

from .amoebanet import amoebanet
from .transformer import transformer, transformer_lm

__all__ = ["amoebanet", "transformer", "transformer_lm"]
