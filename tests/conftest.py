"""Fixtures that every package of tests may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.ranks import Pools


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """``pools(4).run(function, *arguments)`` runs a function on four gloo ranks that stay up for the whole run."""
    pools = Pools()
    yield pools
    pools.close()
