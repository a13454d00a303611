"""Table 3: throughput over a slow link, AmoebaNet-D (18, 128) and Transformer-24 with K = 2, 4, 8 at M = 32."""

from __future__ import annotations

from functools import partial

from ..costs.full_models import amoebanet_d, transformer_l
from ..sweeps.sweep import Target
from .parts import parts
from .rows import rows
from .table import Table, add_options

# P100s of one host without NVLink: every message goes over PCI Express to the host and over it again (section 3).
TABLE = Table("table3", (amoebanet_d(128, "p100"), transformer_l(24, "p100")), (32,), link="pcie3-host")

TARGET = Target(
    name="table3",
    summary="Table 3: throughput over PCI Express through the host, AmoebaNet-D (18, 128) and Transformer-24, M = 32, "
    "relative to\nK = 2: simulated and emulated at full size, measured on scaled-down models.",
    minutes={"smoke": 0.5, "laptop": 3},
    parts=partial(parts, TABLE),
    rows=partial(rows, TABLE),
    add_options=add_options,
)
