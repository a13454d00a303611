"""A translator out of a checkpoint, whatever number of stages wrote it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repro.datasets.vocabulary import Vocabulary
from repro.errors import UserError
from repro.tasks.checkpoints import misfit, read_checkpoint
from repro.tasks.decoding import LENGTH_PENALTY, decode_sentences
from repro.tasks.translation import TEXT, Translation


@dataclass(frozen=True)
class Translator:
    """The unsplit model with its vocabulary, on one device.

    Attributes:
        model: of ``repro.models.transformer``.
        vocabulary: the pieces that it was trained on.
        device: where the model is.
        max_source: pieces of the longest source in its training; None where the checkpoint does not say or there was
            no limit.
    """

    model: nn.Sequential
    vocabulary: Vocabulary
    device: torch.device
    max_source: int | None

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        *,
        beam_size: int = 1,
        length_penalty: float = LENGTH_PENALTY,
        batch_size: int = 128,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[str]:
        """Translations, one line each, of sentences given as pieces (``vocabulary.encode``); see ``decode_sentences``.

        White space becomes single spaces: a piece may be a line feed.
        """
        answers = decode_sentences(
            self.model,
            [[*source, self.vocabulary.eos_id] for source in sources],
            bos_id=self.vocabulary.bos_id,
            eos_id=self.vocabulary.eos_id,
            pad_id=self.vocabulary.pad_id,
            beam_size=beam_size,
            length_penalty=length_penalty,
            batch_size=batch_size,
            device=self.device,
            progress=progress,
        )
        return [" ".join(self.vocabulary.decode(answer).split()) for answer in answers]


def load_translator(path: Path, device: torch.device, vocabulary: Path | None = None) -> Translator:
    """A translator from a checkpoint of ``Translation``.

    Args:
        path: the checkpoint.
        device: where to translate.
        vocabulary: a SentencePiece ``.model`` file; needed where the checkpoint has none, because the run had other
            data than ``TranslationDataModule``.

    Raises:
        UserError: the file is no such checkpoint, or its vocabulary is missing or does not fit the model.
    """
    checkpoint = _load(path)
    text: dict[str, Any] = checkpoint.get(TEXT, {})
    if vocabulary is not None:
        pieces = _read_vocabulary(vocabulary)
    elif "vocabulary" in text:
        pieces = Vocabulary(text["vocabulary"].numpy().tobytes())
    else:
        raise UserError(
            f"checkpoint {path} holds no vocabulary: its run had other data than TranslationDataModule; give the "
            "SentencePiece model with --vocabulary FILE"
        )
    options: dict[str, Any] = checkpoint["hyper_parameters"]
    known = inspect.signature(Translation).parameters
    module = Translation(**{name: value for name, value in options.items() if name in known})
    if pieces.size != module.hparams["vocab_size"]:
        where = path if vocabulary is None else vocabulary
        raise UserError(
            f"{where} has a vocabulary of {pieces.size} pieces, but the model of {path} has "
            f"vocab_size={module.hparams['vocab_size']}"
        )
    try:
        model = module.unsplit(checkpoint["state_dict"])
    except RuntimeError as error:
        reason = misfit(error) or str(error)
        raise UserError(f"checkpoint {path} does not fit the model that it describes: {reason}") from error
    return Translator(model.to(device).eval(), pieces, device, text.get("max_source"))


def _load(path: Path) -> dict[str, Any]:
    checkpoint = read_checkpoint(path)
    if "hyper_parameters" not in checkpoint:
        raise UserError(f"{path} is not a checkpoint of a training run: it has no hyper_parameters")
    if not {"num_heads", "vocab_size"} <= checkpoint["hyper_parameters"].keys():
        made = checkpoint["hyper_parameters"].get("_class_path", "another model")
        raise UserError(f"checkpoint {path} is of {made}, which does not translate; give one of Translation")
    return checkpoint


def _read_vocabulary(path: Path) -> Vocabulary:
    try:
        return Vocabulary(path.read_bytes())
    except OSError as error:
        raise UserError(f"vocabulary {path} cannot be read: {error.strerror or error}") from error
    except RuntimeError as error:
        raise UserError(f"{path} is not a SentencePiece model") from error
