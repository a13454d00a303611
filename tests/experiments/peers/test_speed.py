from __future__ import annotations

import pytest

from repro.experiments.costs.workload import BARE_LOOP, ENGINE, ONE_PROCESS, TORCH, SpeedPlan, Workload
from repro.experiments.peers.speed import ideal_ratio, speed_rows
from repro.experiments.sweeps.rows import Provenance
from repro.experiments.sweeps.turns import median_and_spread


@pytest.mark.parametrize(
    ("stages", "micro_batches", "ratio"), [(2, 8, 0.5625), (2, 1, 1.0), (1, 5, 1.0), (4, 4, 7 / 16)]
)
def test_the_ideal_is_that_of_equal_stages(stages: int, micro_batches: int, ratio: float) -> None:
    assert ideal_ratio(stages, micro_batches) == pytest.approx(ratio)


def test_ratios_are_of_the_same_round() -> None:
    # The machine is twice as slow in the second round and three times in the third: the ratios do not see it.
    seconds = {
        ENGINE: [6.0, 12.0, 18.0],
        BARE_LOOP: [5.0, 10.0, 15.0],
        TORCH: [8.0, 16.0, 24.0],
        ONE_PROCESS: [10.0, 20.0, 30.0],
    }
    rows = speed_rows(Workload(), SpeedPlan(3, 1), seconds)
    ratios = {
        row.params["reference"]: (row.value, row.spread)
        for row in rows
        if row.metric == "step_time_ratio" and row.params["way"] == ENGINE
    }
    assert ratios == {ONE_PROCESS: (0.6, 0.0), BARE_LOOP: (1.2, 0.0), TORCH: (0.75, 0.0)}
    times = {row.params["way"]: (row.value, row.spread) for row in rows if row.metric == "step_time"}
    assert times[ENGINE] == (12.0, 3.0)
    (ideal,) = [row for row in rows if row.params["way"] == "ideal"]
    assert (ideal.value, ideal.provenance) == (0.5625, Provenance.SIMULATED)


def test_median_and_spread() -> None:
    assert median_and_spread([4.0]) == (4.0, 0.0)
    assert median_and_spread([1.0, 2.0, 3.0, 4.0, 100.0]) == (3.0, 1.0)
