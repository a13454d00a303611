from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from repro.cli import main
from repro.gpipe import GPipeStrategy
from repro.tasks.translation import TEXT, Translation, TranslationDataModule
from repro.tasks.translator import load_translator
from tests.datasets.builders import write_corpus

PIECES = 320
LINES = ["open the file", "", "close it", "  ", "a much longer sentence than the others of this text"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model on three stages that has hardly learnt anything."""
    root = tmp_path_factory.mktemp("translate")
    write_corpus(root, ["de", "fr"])
    torch.manual_seed(0)
    module = Translation(
        num_layers=1, d_ff=16, num_heads=2, d_model=8, d_head=4, vocab_size=PIECES, optimizer="adamw", bleu=False
    )
    data = TranslationDataModule(root=str(root), languages=["de", "fr"], vocab_size=PIECES, batch_size=8, max_source=30)
    trainer = pl.Trainer(
        strategy=GPipeStrategy(num_stages=3, num_micro_batches=2),
        accelerator="cpu",
        devices=1,
        logger=False,
        default_root_dir=str(root),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        limit_val_batches=0,
        max_steps=1,
    )
    trainer.fit(module, data)
    trainer.save_checkpoint(root / "last.ckpt")
    return root / "last.ckpt"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.de"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    try:
        code = main(["translate", *map(str, words)])
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def changed(path: Path, folder: Path, **entries: Any) -> Path:
    """The checkpoint with other entries; None takes one out."""
    content = torch.load(path, weights_only=True) | entries
    torch.save({name: value for name, value in content.items() if value is not None}, folder / "changed.ckpt")
    return folder / "changed.ckpt"


def test_the_model_is_that_of_the_checkpoint(checkpoint: Path) -> None:
    """Without the data set, which the checkpoint does not name."""
    translator = load_translator(checkpoint, torch.device("cpu"))
    module = Translation.load_from_checkpoint(checkpoint).eval()
    inputs = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 9]])
    torch.testing.assert_close(translator.model(inputs), module(inputs), rtol=0, atol=0)
    assert translator.max_source == 30
    assert translator.vocabulary.size == PIECES


@pytest.mark.parametrize("beam", [1, 4])
def test_a_line_for_each_line_from_a_file_from_gzip_and_from_standard_input(
    checkpoint: Path,
    text: Path,
    tmp_path: Path,
    beam: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, out, err = run(capsys, "--checkpoint", checkpoint, text, "--beam", beam)
    assert code == 0
    translated = out.split("\n")
    assert translated.pop() == ""
    assert [bool(line) for line in translated] == [bool(line.strip()) for line in LINES]
    assert "empty lines, which stay empty: 2 of 5" in err
    assert "lines of more than the 30 pieces of the longest sentence in training: 1, the first of them line 5" in err

    translator = load_translator(checkpoint, torch.device("cpu"))
    for line, expected in zip(LINES, translated, strict=True):
        if line.strip():
            assert translator.translate([translator.vocabulary.encode(line)], beam_size=beam) == [expected]

    packed = tmp_path / "text.de.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    assert run(capsys, "--checkpoint", checkpoint, packed, "--beam", beam)[1] == out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    assert run(capsys, "-", "--checkpoint", checkpoint, "--beam", beam)[1] == out
    output = tmp_path / "out.en"
    assert run(capsys, "--checkpoint", checkpoint, text, "--beam", beam, "--output", output, "--batch-size", 1)[1] == ""
    assert output.read_text(encoding="utf-8") == out


def test_scores_are_those_of_the_sacrebleu_command(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference, output = tmp_path / "text.en", tmp_path / "out.en"
    assert run(capsys, "--checkpoint", checkpoint, text, "--output", reference)[0] == 0
    words = reference.read_text(encoding="utf-8").replace("\n", " other words\n")  # so that there is some agreement
    reference.write_text(words, encoding="utf-8")
    code, out, err = run(
        capsys, "--checkpoint", checkpoint, text, "--output", output, "--reference", reference, "--beam", 4
    )
    assert code == 0
    bleu, chrf = out.splitlines()
    for line, metric in ((bleu, "bleu"), (chrf, "chrf")):
        command = [sys.executable, "-m", "sacrebleu", reference, "-i", output, "-m", metric, "-w", "2", "-f", "text"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        name, score, signature = line.split()
        assert 0 < float(score) < 100
        assert f"{signature} = {score}" in printed, name
    _, out, err = run(capsys, "--checkpoint", checkpoint, text, "--reference", reference)
    assert out == output.read_text(encoding="utf-8")
    assert bleu in err.splitlines()


def test_a_long_line_is_cut_and_the_note_says_so(
    checkpoint: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "--checkpoint", checkpoint, text, "--max-source", "40", "--beam", "1")
    assert code == 0
    assert "lines of more than 40 pieces: 1, the first of them line 5; only their beginning is translated" in err


def test_output_that_fails_leaves_the_earlier_file(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.en"
    output.write_text("earlier", encoding="utf-8")

    def full(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    code, _, err = run(capsys, "--checkpoint", checkpoint, text, "--output", output)
    assert code == 2 and "out.en cannot be written: No space left" in err
    assert output.read_text(encoding="utf-8") == "earlier"
    monkeypatch.undo()
    link = tmp_path / "link"
    link.symlink_to(output)
    assert run(capsys, "--checkpoint", checkpoint, text, "--output", link)[0] == 0
    assert link.is_symlink() and output.read_text(encoding="utf-8").count("\n") == len(LINES)


def test_no_line_is_no_translation(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    assert run(capsys, "--checkpoint", checkpoint, tmp_path / "empty") == (0, "", "")


def test_a_vocabulary_from_a_file(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = torch.load(checkpoint, weights_only=True)[TEXT]["vocabulary"].numpy().tobytes()
    (tmp_path / "vocabulary.model").write_bytes(model)
    bare = changed(checkpoint, tmp_path, **{TEXT: None})
    words = (text, "--beam", "1", "--checkpoint")
    code, _, err = run(capsys, *words, bare)
    assert code == 2
    assert "changed.ckpt holds no vocabulary" in err and "--vocabulary FILE" in err
    given = run(capsys, *words, bare, "--vocabulary", tmp_path / "vocabulary.model")
    assert given[:2] == run(capsys, *words, checkpoint)[:2]


def wrong_file(case: str, checkpoint: Path, folder: Path) -> list[object]:
    """The words of a command with something wrong."""
    path = folder / "wrong"
    options = torch.load(checkpoint, weights_only=True)["hyper_parameters"]
    match case:
        case "latin":
            path.write_bytes("one\nzwölf\n".encode("latin1"))
            return ["--checkpoint", checkpoint, path]
        case "missing text":
            return ["--checkpoint", checkpoint, path]
        case "missing":
            return ["--checkpoint", path, path]
        case "no checkpoint":
            path.write_text("hello", encoding="utf-8")
            return ["--checkpoint", path, "/dev/null"]
        case "weights alone":
            torch.save({"weight": torch.zeros(1)}, path)
            return ["--checkpoint", path, "/dev/null"]
        case "images":
            other = {"num_filters": 4, "_class_path": "repro.tasks.image_classification.ImageClassification"}
            return ["--checkpoint", changed(checkpoint, folder, hyper_parameters=other), "/dev/null"]
        case "other sizes":
            other = options | {"d_ff": 24}
            return ["--checkpoint", changed(checkpoint, folder, hyper_parameters=other), "/dev/null"]
        case "other vocabulary":
            other = options | {"vocab_size": 300}
            return ["--checkpoint", changed(checkpoint, folder, hyper_parameters=other), "/dev/null"]
        case "no vocabulary":
            path.write_text("hello", encoding="utf-8")
            return ["--checkpoint", checkpoint, "/dev/null", "--vocabulary", path]
        case "unequal":
            path.write_text("one\ntwo\n", encoding="utf-8")
            return ["--checkpoint", checkpoint, "/dev/null", "--reference", path]
        case "output":
            return [
                "--checkpoint",
                path,
                "/dev/null",
                "--output",
                folder / "no" / "folder",
            ]  # told before a checkpoint is read
        case "device":
            return ["--checkpoint", checkpoint, "/dev/null", "--device", "toaster"]
        case "penalty":
            path.write_text("one\n", encoding="utf-8")
            return ["--checkpoint", checkpoint, path, "--beam", "1", "--length-penalty", "-1"]
        case "nothing to score":
            return ["--checkpoint", checkpoint, "/dev/null", "--reference", "/dev/null"]
        case "meta":
            return ["--checkpoint", checkpoint, "/dev/null", "--device", "meta"]
        case "no number":
            return ["--checkpoint", checkpoint, "/dev/null", "--beam", "abc"]
    return ["--checkpoint", checkpoint, "/dev/null", "--beam", "0"]


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("latin", ["wrong, line 2: not UTF-8", "iconv"]),
        ("missing text", ["wrong cannot be read"]),
        ("missing", ["wrong cannot be read"]),
        ("no checkpoint", ["wrong is not a checkpoint"]),
        ("weights alone", ["wrong is not a checkpoint of a training run", "state_dict"]),
        ("images", ["changed.ckpt is of repro.tasks.image_classification.ImageClassification"]),
        ("other sizes", ["changed.ckpt does not fit the model", "size mismatch"]),
        ("other vocabulary", [f"vocabulary of {PIECES} pieces", "vocab_size=300"]),
        ("no vocabulary", ["wrong is not a SentencePiece model"]),
        ("unequal", ["/dev/null has 0 lines", "wrong has 2"]),
        ("output", ["--output", "cannot be written"]),
        ("device", ["--device toaster cannot be used here"]),
        ("penalty", ["--length-penalty", "-1 must be a number, and not negative"]),
        ("nothing to score", ["--reference /dev/null has no lines"]),
        ("meta", ["--device meta cannot be used here"]),
        ("no number", ["--beam: abc must be a whole number, and at least 1"]),
        ("beam", ["--beam: 0 must be a whole number, and at least 1"]),
    ],
)
def test_mistakes_are_told(
    case: str, parts: list[str], checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *wrong_file(case, checkpoint, tmp_path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    for part in ["error: ", *parts]:
        assert part in err, err
