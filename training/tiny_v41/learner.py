"""The model as it learns: loss and gradients of batches, steps of weights and router biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.vision_config import TowerConfig
from torch.nn import functional

from training.tiny_v41.batches import Batch
from training.tiny_v41.model.text import Result, TextModel
from training.tiny_v41.model.vision import VisionModel
from training.tiny_v41.model.weights import for_products
from training.tiny_v41.optimizer import Optimizer, Weights

TEXT_PREFIXES = ("layers.", "embed.", "head.", "norm.", "vision.", "aligner.", "image_")
_NO_GRADIENT = (".gate.bias", ".gate.bias_vl")


@dataclass(frozen=True)
class Total:
    """Of all batches of a step."""

    weight: float
    num_batches: int

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Total:
        return cls(sum(float(batch.weights.sum()) for batch in batches), len(batches))


@dataclass
class Measured:
    """Sums over batches."""

    loss: float = 0.0
    answer_loss: float = 0.0
    num_answer_tokens: int = 0
    index_loss: float = 0.0
    num_batches: int = 0
    counts: torch.Tensor | None = None
    """int64 [layers, 2, experts]"""
    exact: dict[str, list[bool]] = field(default_factory=dict)
    """By family: whether every token of an exercise's last answer was the likeliest"""

    def add(self, other: Measured) -> None:
        self.loss += other.loss
        self.answer_loss += other.answer_loss
        self.num_answer_tokens += other.num_answer_tokens
        self.index_loss += other.index_loss
        self.num_batches += other.num_batches
        assert other.counts is not None
        self.counts = other.counts if self.counts is None else self.counts + other.counts
        for family, found in other.exact.items():
            self.exact.setdefault(family, []).extend(found)

    def exact_shares(self) -> dict[str, float]:
        return {f: round(sum(e) / len(e), 3) for f, e in sorted(self.exact.items())}


class Learner:
    """Weights of text model and tower, and what changes them."""

    def __init__(
        self,
        fields: dict[str, Any],
        weights: Weights,
        state: Mapping[str, Any] | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        max_positions: int = 8192,
    ) -> None:
        """weights: all of the model; those of the draft module stay as they are. state: of the
        optimizer, where this goes on."""
        self.config = DeepseekConfig.from_hf(fields)
        self.weights = weights
        self._dtype = dtype
        self._text = TextModel(self.config, max_positions)
        self._vision = VisionModel(TowerConfig.from_hf(fields)) if self.config.vision else None
        self._learned = {
            name: value.requires_grad_()
            for name, value in weights.items()
            if name.startswith(TEXT_PREFIXES) and not name.endswith(_NO_GRADIENT)
        }
        self.optimizer = Optimizer(self._learned, state)

    @property
    def learned(self) -> Weights:
        """Tensors that gradients step."""
        return self._learned

    def grads(
        self,
        batches: Sequence[Batch],
        total: Total,
        *,
        selects: bool,
    ) -> tuple[dict[str, torch.Tensor], Measured]:
        """What these batches add to a step's gradients. total: of the whole step."""
        self._forget()
        measured = Measured()
        for batch in batches:
            measured.add(self._backward(batch, total, selects=selects))
        grads = {
            name: value.grad for name, value in self._learned.items() if value.grad is not None
        }
        self._forget()
        return grads, measured

    def _forget(self) -> None:
        for value in self._learned.values():
            value.grad = None

    def _backward(self, batch: Batch, total: Total, *, selects: bool) -> Measured:
        result, logits, losses = self._losses(batch, selects=selects)
        is_used = batch.weights > 0
        loss = (losses * batch.weights[is_used]).sum() / total.weight
        (loss + result.index_loss / total.num_batches).backward()  # type: ignore[no-untyped-call]
        return self._measured(batch, result, logits.detach(), losses.detach(), float(loss.detach()))

    @torch.no_grad()
    def measure(self, batches: Sequence[Batch], *, selects: bool) -> Measured:
        """What the model makes of batches, nothing learned."""
        measured = Measured()
        for batch in batches:
            result, logits, losses = self._losses(batch, selects=selects)
            measured.add(self._measured(batch, result, logits, losses, 0.0))
        return measured

    def _losses(self, batch: Batch, *, selects: bool) -> tuple[Result, torch.Tensor, torch.Tensor]:
        """Of the rows with a weight: logits and cross entropies."""
        result, weights = self.run(batch, selects=selects)
        is_used = batch.weights > 0
        logits = self._text.logits(weights, result.streams[is_used], result.pre[is_used])
        return (
            result,
            logits,
            functional.cross_entropy(logits, batch.labels[is_used], reduction="none"),
        )

    def run(self, batch: Batch, *, selects: bool) -> tuple[Result, Weights]:
        """One pass, and the weights as they were used."""
        weights = for_products(self.weights, self._dtype)
        given = batch.given
        if batch.pixels is not None and self._vision is not None:
            given = type(given)(**{**vars(given), "images": self._vision(weights, batch.pixels)})
        return self._text(weights, given, selects=selects), weights

    def _measured(
        self,
        batch: Batch,
        result: Result,
        logits: torch.Tensor,
        losses: torch.Tensor,
        loss: float,
    ) -> Measured:
        is_used = batch.weights > 0
        is_answer = batch.is_answer[is_used]
        is_wrong = torch.zeros_like(batch.is_last)
        is_wrong[is_used] = logits.argmax(-1) != batch.labels[is_used]
        is_exact = ~(is_wrong & batch.is_last).any(1)
        measured = Measured(
            loss=loss,
            answer_loss=float(losses[is_answer].sum()),
            num_answer_tokens=int(is_answer.sum()),
            index_loss=float(result.index_loss.detach()),
            num_batches=1,
            counts=result.expert_counts,
        )
        for family, found in zip(batch.families, is_exact.tolist(), strict=True):
            measured.exact.setdefault(family, []).append(found)
        return measured

    @torch.no_grad()
    def balance(self, counts: torch.Tensor, rate: float) -> None:
        """Biases of experts with more rows than others go down, the others' up."""
        for layer, of_layer in enumerate(counts):
            for name, found in zip(("bias", "bias_vl"), of_layer, strict=True):
                bias = self.weights.get(f"layers.{layer}.ffn.gate.{name}")
                if bias is not None and int(found.sum()):
                    bias += rate * torch.sign(found.float().mean() - found.float())
