"""``repro translate``: lines of a file or of standard input through a trained Transformer."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from repro.arguments import ArgumentParser, positive
from repro.commands.devices import find_device
from repro.commands.progress import Counting
from repro.datasets.text_lines import decode_lines, read_lines
from repro.errors import UserError
from repro.tasks.bleu import corpus_bleu, corpus_chrf
from repro.tasks.decoding import LENGTH_PENALTY
from repro.tasks.translator import Translator, load_translator

_DESCRIPTION = """\
Translate a text, one sentence a line, with a checkpoint of Translation, whatever number of stages trained it. The whole
model runs on one device. The checkpoint holds its vocabulary, so no data set is needed."""

_EPILOG = """\
Lines are UTF-8 (a file may be compressed by gzip) and come out in their order, one line each; an empty line stays
empty. Notes go to standard error, and so do the scores of --reference unless there is --output.

examples:
  repro translate --checkpoint last.ckpt sentences.es
  repro translate --checkpoint last.ckpt --beam 1 < sentences.es
  repro translate --checkpoint last.ckpt test.es --output test.hyp --reference test.en"""


def main(argv: Sequence[str]) -> None:
    """Runs ``repro translate`` with ``argv``."""
    options = _parser().parse_all(argv)
    lines = _read(options.input)
    references = None if options.reference is None else list(read_lines(options.reference))
    if references is not None and len(references) != len(lines):
        raise UserError(
            f"{_name(options.input)} has {len(lines):,} lines but --reference {options.reference} has "
            f"{len(references):,}: line by line one must be the translation of the other"
        )
    if references == []:
        raise UserError(f"--reference {options.reference} has no lines: there is nothing to score")
    if options.output is not None:
        _check_output(options.output)
    device = find_device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    translator = load_translator(options.checkpoint, device, options.vocabulary)
    translations = _translate(translator, lines, options)
    text = "".join(f"{line}\n" for line in translations)
    if options.output is None:
        sys.stdout.write(text)
    else:
        _write(options.output, text)
    if references is not None:
        scores_to = sys.stderr if options.output is None else sys.stdout
        for name, found in (
            ("BLEU", corpus_bleu(translations, references)),
            ("chrF", corpus_chrf(translations, references)),
        ):
            print(f"{name} {found.score:.2f}  {found.signature}", file=scores_to)


def _translate(translator: Translator, lines: Sequence[str], options: argparse.Namespace) -> list[str]:
    """One translation for each line; what is out of the ordinary is counted on standard error."""
    filled = [number for number, line in enumerate(lines) if line.strip()]
    sources = [translator.vocabulary.encode(lines[number]) for number in filled]
    if len(filled) < len(lines):
        _note(f"empty lines, which stay empty: {len(lines) - len(filled):,} of {len(lines):,}")
    cut = [number for number, source in zip(filled, sources, strict=True) if len(source) > options.max_source]
    if cut:
        _note(
            f"lines of more than {options.max_source:,} pieces: {len(cut):,}, the first of them line {cut[0] + 1:,}; "
            "only their beginning is translated (--max-source)"
        )
    trained = translator.max_source
    longer = [number for number, source in zip(filled, sources, strict=True) if trained and len(source) > trained]
    if longer:
        _note(
            f"lines of more than the {trained:,} pieces of the longest sentence in training: {len(longer):,}, the "
            f"first of them line {longer[0] + 1:,}; expect less of them"
        )
    with Counting("lines translated") as counting:
        found = translator.translate(
            [source[: options.max_source] for source in sources],
            beam_size=options.beam,
            length_penalty=options.length_penalty,
            batch_size=options.batch_size,
            progress=counting,
        )
    translations = [""] * len(lines)
    for number, translation in zip(filled, found, strict=True):
        translations[number] = translation
    return translations


def _read(path: Path | None) -> list[str]:
    return list(decode_lines(sys.stdin.buffer, _name(path)) if path is None else read_lines(path))


def _name(path: Path | None) -> str:
    return "standard input" if path is None else str(path)


def _check_output(path: Path) -> None:
    """Before hours of translating, whose result could not be written.

    Raises:
        UserError: the file cannot be written.
    """
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--output {path} cannot be written: give a file in a folder that is there and can be written")


def _write(path: Path, text: str) -> None:
    """As a whole: a file of an earlier run is replaced or stays as it was; a pipe or device is written to."""
    replaced = not path.is_symlink() and (path.is_file() or not path.exists())
    target = path.with_name(f".{path.name}.part") if replaced else path
    try:
        target.write_text(text, encoding="utf-8")
        target.replace(path)
    except OSError as error:
        raise UserError(f"--output {path} cannot be written: {error.strerror or error}") from error


def _note(text: str) -> None:
    print(f"repro translate: {text}", file=sys.stderr)


def _parser() -> ArgumentParser:
    parser = ArgumentParser("repro translate", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "input",
        nargs="?",
        type=_file_or_standard_input,
        metavar="FILE",
        help="text to translate; without it, or as -, standard input",
    )
    parser.add_argument("--checkpoint", required=True, type=Path, metavar="FILE", help="of a run of Translation")
    parser.add_argument("--beam", type=positive, default=4, metavar="N", help="hypotheses; 1 is greedy (default: 4)")
    parser.add_argument(
        "--length-penalty",
        type=_not_negative,
        default=LENGTH_PENALTY,
        metavar="X",
        help=f"exponent; more for longer translations, 0 for none (default: {LENGTH_PENALTY})",
    )
    parser.add_argument(
        "--batch-size", type=positive, default=64, metavar="N", help="sentences at a time (default: 64)"
    )
    parser.add_argument(
        "--max-source", type=positive, default=512, metavar="N", help="pieces of a line that are read (default: 512)"
    )
    parser.add_argument("--device", help="cpu, cuda:1, mps (default: a GPU of CUDA where there is one, else cpu)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there (default: standard output)")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="print BLEU and chrF against it, by sacrebleu")
    parser.add_argument(
        "--vocabulary", type=Path, metavar="FILE", help="SentencePiece model, if the checkpoint has none"
    )
    return parser


def _file_or_standard_input(text: str) -> Path | None:
    return None if text == "-" else Path(text)


def _not_negative(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be a number, and not negative")
    return number
