from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from repro.commands.cost_files import read_costs
from repro.errors import UserError


def write(folder: Path, data: Any) -> Path:
    path = folder / "costs.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def event(name: str, microseconds: float) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": 0, "dur": microseconds}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"forward": 1, "backward": 2.5}, {"forward": 1, "backward": 2.5}),
        ({"forward": [1, 2], "backward": 3}, {"forward": (1, 2), "backward": 3}),
        ({"forward": 1, "backward": 2, "transfer": [0.5]}, {"forward": 1, "backward": 2, "transfer": (0.5,)}),
        # Five layers on two stages: 1 + 1 + 2 | 3 + 1 of F and B is the partition whose largest stage is smallest.
        (
            {"forward": [1, 1, 2, 3, 1], "backward": [2, 2, 4, 6, 2], "boundary_bytes": [9] * 5},
            {"forward": (4, 4), "backward": (8, 8)},
        ),
        ({"key": "k", "seconds": [3, 3, 6]}, {"forward": (2, 2), "backward": (4, 4)}),
        (
            {
                "traceEvents": [
                    *(event(f"F{index}@0", cost) for index, cost in enumerate((2, 3, 99))),
                    event("F0@1", 4),
                    event("B0@0", 5),
                    event("I0@1", 6),
                    event("W0@1", 1),
                    event("R0@0", 2),
                    {"ph": "M", "name": "process_name"},
                    event("send activation 0: 0 to 1", 7),
                ]
            },
            {"forward": (3, 4), "backward": (5, 7), "recompute": (2, 0), "weight": (0, 1)},
        ),
    ],
)
def test_what_is_understood(tmp_path: Path, data: Any, expected: dict[str, Any]) -> None:
    assert read_costs(write(tmp_path, data), 2) == expected


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ("not json", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ([1, 2], "give an object"),
        ({"forward": 10**400, "backward": 2}, "forward holds a number that is not finite, or too large"),
        ({"forward": [1, 10**400, 1], "backward": [1, 1, 1]}, "forward holds a number that is not finite"),
        ({"forward": 1}, "no forward and backward"),
        ({"forward": "1", "backward": 2}, "forward is not a number"),
        ({"forward": [1, "2"], "backward": 2}, "forward is not a number or a list"),
        ({"forward": [1], "backward": [2]}, "1 values are too few for 2 stages"),
        ({"forward": [1, 2], "backward": [2, 3, 4]}, "different lengths (forward: 2, backward: 3)"),
        ({"traceEvents": [event("F0@0", 1)]}, "actions of 1 stages, but K x V is 2"),
        ({"traceEvents": 3}, "actions of 0 stages"),
        ({"seconds": 3}, "seconds is not a number or a list"),
    ],
)
def test_what_is_not(tmp_path: Path, data: Any, part: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(UserError) as caught:
        read_costs(path, 2)
    assert part in str(caught.value)
    assert f"--costs {path}" in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_costs(tmp_path / "none.json", 2)
