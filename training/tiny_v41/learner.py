"""The model as it learns: loss and gradients of batches, steps of weights and router biases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.vision_config import TowerConfig
from torch.nn import functional

from training.optimizer import Optimizer, Weights
from training.tiny_v41.batches import Batch
from training.tiny_v41.measured import Measured, Total
from training.tiny_v41.model.text import Result, TextModel
from training.tiny_v41.model.vision import VisionModel, naming_loss
from training.tiny_v41.model.weights import for_products

TEXT_PREFIXES = ("layers.", "embed.", "head.", "norm.", "vision.", "aligner.", "image_")
MAX_POSITIONS = 16384
_NAMING_WEIGHT = 0.3
"""Of what pictures' rows are taught directly, against what answers teach"""
NO_GRADIENT = (".gate.bias", ".gate.bias_vl")


class Passes:
    """Passes of one model's weights over batches."""

    def __init__(
        self, fields: dict[str, Any], weights: Weights, dtype: torch.dtype, max_positions: int
    ) -> None:
        self.config = DeepseekConfig.from_hf(fields)
        self.weights, self._dtype = weights, dtype
        self._text = TextModel(self.config, max_positions)
        self._vision = VisionModel(TowerConfig.from_hf(fields)) if self.config.vision else None

    def for_products(self) -> Weights:
        """The weights as passes use them."""
        return for_products(self.weights, self._dtype)

    def run(self, weights: Weights, batch: Batch, *, selects: bool) -> Result:
        """One pass; weights: for products."""
        given = replace(batch.given, images=self.look(weights, batch))
        return self._text(weights, given, selects=selects)

    def look(self, weights: Weights, batch: Batch) -> torch.Tensor | None:
        """Rows of a batch's pictures."""
        if batch.pixels is None or self._vision is None:
            return None
        return self._vision(weights, batch.pixels)


def learning(weights: Weights, learned: Iterable[str]) -> Weights:
    """The same values, gradients of the learned ones to be gathered over many passes, in the dtype
    of products."""
    names = set(learned)
    return {name: value.detach().requires_grad_(name in names) for name, value in weights.items()}


def grads_of(weights: Weights) -> Weights:
    """fp32, of what learning() made, where there are any."""
    return {name: value.grad.float() for name, value in weights.items() if value.grad is not None}


class Learner(Passes):
    """Weights of text model and tower, and what changes them."""

    def __init__(
        self,
        fields: dict[str, Any],
        weights: Weights,
        state: Mapping[str, Any] | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        max_positions: int = MAX_POSITIONS,
    ) -> None:
        """weights: all of the model; those of the draft module stay as they are. state: of the
        optimizer, where this goes on."""
        super().__init__(fields, weights, dtype, max_positions)
        self._learned = {
            name: value
            for name, value in weights.items()
            if name.startswith(TEXT_PREFIXES) and not name.endswith(NO_GRADIENT)
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
        weights = learning(self.for_products(), self._learned)
        measured = Measured()
        for batch in batches:
            measured.add(self._backward(weights, batch, total, selects=selects))
        return grads_of(weights), measured

    def _backward(self, weights: Weights, batch: Batch, total: Total, *, selects: bool) -> Measured:
        seen = self.look(weights, batch)
        result = self._text(weights, replace(batch.given, images=seen), selects=selects)
        logits, losses = self._losses(weights, batch, result)
        is_used = batch.weights > 0
        loss = (losses * batch.weights[is_used]).sum() / total.weight
        naming = self._naming_loss(weights, batch, seen) / max(1, total.num_shapes)
        whole = loss + result.index_loss / total.num_batches + _NAMING_WEIGHT * naming
        whole.backward()  # type: ignore[no-untyped-call]
        found = float(loss.detach())
        measured = self._measured(batch, result, logits.detach(), losses.detach(), found)
        measured.naming_loss = float(naming.detach())
        return measured

    def _naming_loss(
        self, weights: Weights, batch: Batch, seen: torch.Tensor | None
    ) -> torch.Tensor:
        shown = batch.shown
        if seen is None or shown is None or batch.pixels is None:
            return torch.zeros(())
        places = shown.pictures * (len(seen) // len(batch.pixels)) + shown.rows
        return naming_loss(seen, places, shown.words, weights["embed.weight"])

    @torch.no_grad()
    def measure(self, batches: Sequence[Batch], *, selects: bool) -> Measured:
        """What the model makes of batches, nothing learned."""
        weights, measured = self.for_products(), Measured()
        for batch in batches:
            result = self.run(weights, batch, selects=selects)
            logits, losses = self._losses(weights, batch, result)
            measured.add(self._measured(batch, result, logits, losses, 0.0))
        return measured

    def _losses(
        self, weights: Weights, batch: Batch, result: Result
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the rows with a weight: logits and cross entropies."""
        is_used = batch.weights > 0
        rows = is_used.flatten().nonzero()[:, 0]
        streams, pre = (v.flatten(0, 1).index_select(0, rows) for v in (result.streams, result.pre))
        logits = self._text.logits(weights, streams, pre)
        return logits, functional.cross_entropy(logits, batch.labels[is_used], reduction="none")

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
