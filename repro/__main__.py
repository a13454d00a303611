"""``python -m repro`` is ``repro``."""

from __future__ import annotations

import sys

from repro.cli import main

sys.exit(main())
