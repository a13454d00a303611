"""Table 2: normalised training throughput of AmoebaNet-D (18, 256) and Transformer-48 over K and M."""

from __future__ import annotations

from functools import partial

from ..costs.full_models import amoebanet_d, transformer_l
from ..sweeps.sweep import Target
from .parts import parts
from .rows import rows
from .table import Table, add_options

TABLE = Table("table2", (amoebanet_d(256, "tpu-v2"), transformer_l(48, "tpu-v3")), (1, 4, 32))

TARGET = Target(
    name="table2",
    summary="Table 2: throughput of AmoebaNet-D (18, 256) and Transformer-48 over K and M, relative to K = 2, M = 1: "
    "simulated\nand emulated at full size, measured on scaled-down models.",
    minutes={"smoke": 0.6, "laptop": 9},
    parts=partial(parts, TABLE),
    rows=partial(rows, TABLE),
    add_options=add_options,
)
