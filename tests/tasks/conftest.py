"""Tiny packaged sets, in the formats of the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datasets.builders import write_corpus, write_images

VOCABULARY = 320


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with 60 + 10 pictures and two languages of 60 sentences each."""
    root = tmp_path_factory.mktemp("packaged")
    write_images(root, train=60, test=10)
    write_corpus(root, ["de", "fr"])
    return root
