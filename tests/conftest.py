"""Fixtures that every package of tests may use."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
import torch

from tests.helpers.ranks import Pools


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The models of the tests are tiny: more threads only get in each other's way."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_seed_in_the_environment() -> Iterator[None]:
    """Lightning's ``seed_everything`` leaves variables behind, by which later tests would seed their workers."""
    names = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")
    before = {name: os.environ.get(name) for name in names}
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(autouse=True)
def _level_of_lightning() -> Iterator[None]:
    """A job that keeps Lightning quiet does so for its process: later tests would not see what is logged."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """``pools(4).run(function, *arguments)`` runs a function on four gloo ranks that stay up for the whole run."""
    pools = Pools()
    yield pools
    pools.close()
