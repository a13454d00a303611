"""Written translations: read back whole, and judged by the sacrebleu command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from repro.datasets.paths import DataError
from repro.datasets.translation import Pair
from repro.tasks.bleu import corpus_bleu, corpus_chrf
from repro.tasks.translation_files import read_translations, write_translations

PAIRS = [
    Pair("de", 'die "tür" ist auf', 'the "door" is open, and the light is on', -1),
    Pair("fr", "\tla porte ", " the window \t is   shut today", -1),
    Pair("fr", "rien", "nothing at all was found here", -1),
]
HYPOTHESES = ['the "door" is open, the light is on', "the window is\nshut  to day", ""]


def test_read_back_as_they_were_written(tmp_path: Path) -> None:
    write_translations(tmp_path / "new", PAIRS, HYPOTHESES)
    assert read_translations(tmp_path / "new") == (PAIRS, HYPOTHESES)
    with pytest.raises(DataError, match=r"translations\.tsv: it is written at the end of a test epoch"):
        read_translations(tmp_path)


def test_the_sacrebleu_command_gives_the_same_scores(tmp_path: Path) -> None:
    write_translations(tmp_path, PAIRS, HYPOTHESES)
    files = [str(tmp_path / "references.txt"), "-i", str(tmp_path / "translations.txt")]
    command = [sys.executable, "-m", "sacrebleu", *files, "-m", "bleu", "chrf", "--width", "10"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    bleu, chrf = json.loads(answer.stdout)
    references = [pair.english for pair in PAIRS]
    assert 0 < bleu["score"] == round(corpus_bleu(HYPOTHESES, references).score, 10)
    assert 0 < chrf["score"] == round(corpus_chrf(HYPOTHESES, references).score, 10)
    assert bleu["signature"] == corpus_bleu(HYPOTHESES, references).signature
    assert chrf["signature"] == corpus_chrf(HYPOTHESES, references).signature
