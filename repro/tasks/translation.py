"""Multilingual translation with the Transformer T(L, H, A) (section 5 of the paper)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from repro.datasets.vocabulary import Vocabulary
from repro.errors import UserError
from repro.gpipe import PipelineModule
from repro.models.transformer import transformer
from repro.tasks.bleu import baselines, corpus_bleu, corpus_chrf, unigram_nll
from repro.tasks.decoding import LENGTH_PENALTY, decode_sentences
from repro.tasks.language_scores import resource_groups, scores_by_language
from repro.tasks.optimization import OptimizerName, ScheduleName, configured_optimizers
from repro.tasks.translation_data import TranslationDataModule
from repro.tasks.translation_files import write_scores, write_translations

__all__ = ["TEXT", "Translation", "TranslationDataModule"]

TEXT = "translation"
"""The entry of a checkpoint that holds the ``vocabulary`` (bytes of its SentencePiece model) and ``max_source``."""


class Translation(PipelineModule):
    """Transformer encoder-decoder with a label-smoothed cross-entropy loss over the tokens that are not padding.

    Logged: ``loss`` (smoothed), ``accuracy`` (of the next token, given the reference so far), and in evaluation ``nll``
    (not smoothed, natural logarithm, per token) and ``perplexity``. After a test epoch over ``TranslationDataModule``
    also ``test_bleu`` and ``test_chrf`` of its translations, beside ``test_bleu_copy`` and ``test_bleu_nearest``
    (copying the source; the English of the most similar training source) and ``test_unigram_nll``.

    Args:
        num_layers: L, encoder layers, and decoder layers unless ``num_decoder_layers`` says otherwise.
        d_ff: H, width of the feed-forward layers.
        num_heads: A; attention has ``d_head`` x A channels.
        vocab_size: pieces, as in the data.
        d_model: width of the states.
        d_head: channels of one head.
        num_decoder_layers: decoder layers.
        dropout: on embeddings and on what each sub-layer adds.
        split_sublayers: make every sub-layer a layer, to balance stages more finely.
        pad_id: the padding token.
        scale_ffn_init: start the feed-forward layers smaller the more layers there are, for deep models.
        logit_clip: largest magnitude of a logit, for deep models; None: no limit.
        label_smoothing: probability mass that is spread over all pieces.
        optimizer: "adafactor", "adam", "adamw", "rmsprop" or "sgd".
        learning_rate: its peak; of Adafactor relative to the size of each parameter (``optimization.make_optimizer``).
        weight_decay: of matrices; biases and norms do not decay.
        momentum: beta 1 of Adam, momentum of the others; Adafactor has none.
        second_momentum: beta 2 of Adam, decay of RMSProp.
        epsilon: in the denominator of Adam and RMSProp.
        schedule: "constant", "one_cycle", "inverse_sqrt" or "exponential", after the warm-up.
        warmup_steps: optimizer steps of linear warm-up.
        decay_rate: factor of "exponential".
        decay_steps: optimizer steps between two factors of "exponential".
        bleu: translate the test part at the end of a test epoch.
        baselines: judge copying, the nearest training sentence and piece frequencies beside it: seconds on the packaged
            corpus, hours on millions of sentences.
        beam_size: hypotheses of a sentence when it translates; 1 is greedy.
        length_penalty: exponent of the length penalty of beam search.
    """

    def __init__(
        self,
        num_layers: int = 6,
        d_ff: int = 8192,
        num_heads: int = 16,
        vocab_size: int = 8000,
        d_model: int = 1024,
        d_head: int = 64,
        num_decoder_layers: int | None = None,
        dropout: float = 0.1,
        split_sublayers: bool = False,
        pad_id: int = 0,
        scale_ffn_init: bool = False,
        logit_clip: float | None = None,
        label_smoothing: float = 0.1,
        optimizer: OptimizerName = "adam",
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.9,
        second_momentum: float = 0.98,
        epsilon: float = 1e-9,
        schedule: ScheduleName = "inverse_sqrt",
        warmup_steps: int = 0,
        decay_rate: float = 0.97,
        decay_steps: int = 1,
        bleu: bool = True,
        baselines: bool = True,
        beam_size: int = 1,
        length_penalty: float = LENGTH_PENALTY,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()

    @override
    def layers(self) -> list[Any]:
        h: Any = self.hparams
        return transformer(
            num_layers=h.num_layers,
            d_ff=h.d_ff,
            num_heads=h.num_heads,
            vocab_size=h.vocab_size,
            d_model=h.d_model,
            d_head=h.d_head,
            num_decoder_layers=h.num_decoder_layers,
            dropout=h.dropout,
            pad_id=h.pad_id,
            split_sublayers=h.split_sublayers,
            scale_ffn_init=h.scale_ffn_init,
            logit_clip=h.logit_clip,
        )

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over the tokens that are not padding of logits (B, T, V) against pieces (B, T), and their number."""
        return self._cross_entropy(outputs, targets, self.hparams["label_smoothing"]), self._count(targets)

    @override
    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Right tokens; in evaluation also the negative log likelihood."""
        count = self._count(targets)
        right = (outputs.argmax(dim=-1) == targets) & (targets != self.hparams["pad_id"])
        found = {"accuracy": (right.sum(), count)}
        if not self.training:  # one more softmax over the vocabulary, which training need not pay for
            found["nll"] = (self._cross_entropy(outputs, targets, 0.0), count)
        return found

    @override
    def example_inputs(self) -> tuple[Tensor, Tensor]:
        source = torch.ones(2, 16, dtype=torch.int64)
        return source, source.clone()

    @override
    def example_batch(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source, target = self.example_inputs()
        data = getattr(self._trainer, "datamodule", None)
        if isinstance(data, TranslationDataModule) and data.max_source is not None and data.max_target is not None:
            # The longest rows, each with the piece that ends or begins it.
            source, target = (
                torch.ones(2, length + 1, dtype=torch.int64) for length in (data.max_source, data.max_target)
            )
        return (source, target), target.clone()

    @override
    def configure_optimizers(self) -> Any:
        return configured_optimizers(self)

    def unsplit(self, state: Mapping[str, Any]) -> nn.Sequential:
        """The whole model with the weights of ``state``, which may come from any number of stages.

        Raises:
            RuntimeError: the weights are those of another model.
        """
        with torch.device("meta"):
            model = nn.Sequential(*(make() for make in self.layers()))
        layers = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
        model.load_state_dict(layers, assign=True)
        return model

    @override
    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """The most probable next piece at every position (B, T), given the reference before it; None but on rank 0.

        Logits over the whole vocabulary would fill the memory. Translations are written at the end of a test epoch.
        """
        logits = super().predict_step(batch, batch_idx, dataloader_idx)
        return logits if logits is None else logits.argmax(dim=-1)

    @override
    def setup(self, stage: str) -> None:
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, TranslationDataModule) and data.vocab_size != self.hparams["vocab_size"]:
            raise UserError(
                f"the model has vocab_size={self.hparams['vocab_size']} but the data has vocab_size={data.vocab_size}; "
                "give both the same number"
            )

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps what a translator needs beside the weights: the vocabulary, and how long the sources were."""
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, TranslationDataModule) and self.trainer.is_global_zero:
            checkpoint[TEXT] = {"vocabulary": _as_tensor(data.vocabulary), "max_source": data.max_source}

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Compares the vocabulary with that of the data: pieces with other numbers would be read as other words."""
        data = getattr(self.trainer, "datamodule", None) if self._trainer is not None else None
        if not isinstance(data, TranslationDataModule) or TEXT not in checkpoint:
            return
        # The rank that reads data knows; the others must not go on without it.
        agree = self.trainer.is_global_zero and torch.equal(
            checkpoint[TEXT]["vocabulary"].cpu(), _as_tensor(data.vocabulary)
        )
        if not self.trainer.strategy.broadcast(agree):
            raise UserError(
                "the checkpoint was trained with another vocabulary than that of the data: give the data the languages "
                "(or vocabulary_languages), vocab_size, vocab_lines and seed of that run"
            )

    @override
    def on_validation_epoch_end(self) -> None:
        self._log_perplexity("val")

    @override
    def on_test_epoch_end(self) -> None:
        self._log_perplexity("test")
        data = getattr(self.trainer, "datamodule", None)
        if self.hparams["bleu"] and isinstance(data, TranslationDataModule):
            # Every rank helps to gather the layers and to agree on the folder; the first one translates.
            state, folder = self.trainer.strategy.lightning_module_state_dict(), self.trainer.log_dir
            found = self._translate(state, data, folder) if self.trainer.is_global_zero else {}
            for name, value in self.trainer.strategy.broadcast(found).items():
                self.log(f"test_{name}", value)

    def _translate(self, state: dict[str, Any], data: TranslationDataModule, folder: str | None) -> dict[str, float]:
        """Translates the test part with the unsplit model, writes the sentences down, and judges them."""
        model = self.unsplit(state).to(self.device)
        vocabulary, encoded, pairs = data.vocabulary, data.encoded("test"), data.pairs("test")
        answers = decode_sentences(
            model,
            [(*item.source, vocabulary.eos_id) for item in encoded.items],
            bos_id=vocabulary.bos_id,
            eos_id=vocabulary.eos_id,
            pad_id=vocabulary.pad_id,
            beam_size=self.hparams["beam_size"],
            length_penalty=self.hparams["length_penalty"],
            device=self.device,
        )
        hypotheses = [vocabulary.decode(answer) for answer in answers]
        judged = [pairs[item.index] for item in encoded.items]
        references = [pair.english for pair in judged]
        bleu, chrf = corpus_bleu(hypotheses, references), corpus_chrf(hypotheses, references)
        rank_zero_info(
            f"{len(judged)} held-out sentences: BLEU {bleu.score:.2f} ({bleu.signature}), chrF {chrf.score:.2f} "
            f"({chrf.signature})"
        )
        if folder is not None:
            write_translations(Path(folder), judged, hypotheses)
            sizes = Counter(pair.language for pair in data.pairs("train"))
            groups = resource_groups({pair.language: sizes[pair.language] for pair in judged})
            write_scores(Path(folder), scores_by_language(judged, hypotheses, groups))
        found = {"bleu": bleu.score, "chrf": chrf.score}
        if not self.hparams["baselines"]:
            return found
        others = baselines(data.pairs("train"), judged)
        rank_zero_info(
            f"on the same sentences: BLEU of copying the source {others.copy.score:.2f}, of the nearest training "
            f"sentence {others.nearest.score:.2f}"
        )
        return found | {
            "bleu_copy": others.copy.score,
            "bleu_nearest": others.nearest.score,
            "unigram_nll": unigram_nll(
                data.encoded("train").items,
                encoded.items,
                eos_id=vocabulary.eos_id,
                vocab_size=vocabulary.size,
            ),
        }

    def _log_perplexity(self, stage: str) -> None:
        nll = self.trainer.callback_metrics.get(f"{stage}_nll")
        if nll is not None:
            self.log(f"{stage}_perplexity", math.exp(min(float(nll), 700.0)))

    def _cross_entropy(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        return F.cross_entropy(
            logits.flatten(0, 1),
            targets.flatten(),
            ignore_index=self.hparams["pad_id"],
            reduction="sum",
            label_smoothing=smoothing,
        )

    def _count(self, targets: Tensor) -> Tensor:
        count: Tensor = (targets != self.hparams["pad_id"]).sum()
        return count


def _as_tensor(vocabulary: Vocabulary) -> Tensor:
    """Its bytes in a form that ``torch.load`` takes without trusting the file."""
    return torch.frombuffer(bytearray(vocabulary.model), dtype=torch.uint8)
