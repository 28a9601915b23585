"""The draft module as it learns: the model frozen, its own answers to guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from training.optimizer import Optimizer, Weights
from training.tiny_v41.batches import Batch
from training.tiny_v41.learner import MAX_POSITIONS, NO_GRADIENT, Passes, grads_of, learning
from training.tiny_v41.measured import Measured, Total
from training.tiny_v41.model.draft import DraftModel, Guesses, draft_loss

DRAFT_PREFIX = "mtp."


class DraftLearner(Passes):
    """Weights of the draft module, and what changes them."""

    def __init__(
        self,
        fields: dict[str, Any],
        weights: Weights,
        state: Mapping[str, Any] | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        max_positions: int = MAX_POSITIONS,
    ) -> None:
        """weights: all of the model. state: of the optimizer, where this goes on."""
        super().__init__(fields, weights, dtype, max_positions)
        self._draft = DraftModel(self.config, max_positions)
        self._learned = {
            name: value
            for name, value in weights.items()
            if name.startswith(DRAFT_PREFIX) and not name.endswith(NO_GRADIENT)
        }
        self.optimizer = Optimizer(self._learned, state)

    @property
    def learned(self) -> Weights:
        """Tensors that gradients step."""
        return self._learned

    def grads(
        self, batches: Sequence[Batch], total: Total, *, selects: bool
    ) -> tuple[dict[str, torch.Tensor], Measured]:
        """What these batches add to a step's gradients. total: of the whole step."""
        weights, measured = learning(self.for_products(), self._learned), Measured()
        for batch in batches:
            guesses, wanted, labels, is_learned = self._guesses(weights, batch, selects=selects)
            share = len(labels) / max(1, total.num_anchors)
            loss = draft_loss(guesses, wanted, labels, is_learned) * share
            if len(labels):
                loss.backward()  # type: ignore[no-untyped-call]
            measured.add(self._measured(batch, guesses, wanted, labels, float(loss.detach())))
        return grads_of(weights), measured

    @torch.no_grad()
    def measure(self, batches: Sequence[Batch], *, selects: bool) -> Measured:
        """How far guesses go on batches, nothing learned."""
        weights, measured = self.for_products(), Measured()
        for batch in batches:
            guesses, wanted, labels, _ = self._guesses(weights, batch, selects=selects)
            measured.add(self._measured(batch, guesses, wanted, labels, 0.0))
        return measured

    @torch.no_grad()
    def judge(self, batch: Batch, *, selects: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(confidences before temperature and sigmoid [N, g]; guesses accepted in a row [N])."""
        guesses, wanted, labels, _ = self._guesses(self.for_products(), batch, selects=selects)
        return guesses.confidences, _num_accepted(guesses.logits, wanted, labels)

    def _guesses(
        self, weights: Weights, batch: Batch, *, selects: bool
    ) -> tuple[Guesses, torch.Tensor, torch.Tensor, torch.Tensor]:
        """(guesses, the model's logits for them, the right tokens, which of them count)."""
        with torch.no_grad():
            result = self.run(weights, batch, selects=selects)
        anchors, block = batch.anchors, self._draft.draft.block
        places = anchors.rows[:, None] + torch.arange(block)
        last = batch.labels.shape[1] - 1
        rows = anchors.sequences[:, None], places.clamp_max(last)
        is_learned = batch.is_answer[rows] & (places <= last)
        before = anchors.sequences[:, None], (places - 1).clamp_max(last)
        with torch.no_grad():
            streams, pre = result.streams[rows].flatten(0, 1), result.pre[rows].flatten(0, 1)
            wanted = self._text.logits(weights, streams, pre).view(*places.shape, -1)
        guesses = self._draft(weights, batch.given, result, anchors, batch.labels[before])
        return guesses, wanted, batch.labels[rows], is_learned

    def _measured(
        self,
        batch: Batch,
        guesses: Guesses,
        wanted: torch.Tensor,
        labels: torch.Tensor,
        loss: float,
    ) -> Measured:
        logits = guesses.logits.detach()
        entropy = functional.cross_entropy(logits.mT, labels, reduction="sum")
        lengths = _num_accepted(logits, wanted, labels).tolist()
        measured = Measured(
            loss=loss,
            answer_loss=float(entropy),
            num_answer_tokens=labels.numel(),
            num_batches=1,
            counts=guesses.expert_counts[:, None],
        )
        pairs = zip(batch.anchors.sequences.tolist(), lengths, strict=True)
        for sequence, length in pairs:
            measured.accepted.setdefault(batch.families[sequence], []).append(length)
        return measured

    @torch.no_grad()
    def balance(self, counts: torch.Tensor, rate: float) -> None:
        """As Learner.balance, of the draft module's routers."""
        for stage, (found,) in enumerate(counts):
            bias = self.weights[f"{DRAFT_PREFIX}{stage}.ffn.gate.bias"]
            bias += rate * torch.sign(found.float().mean() - found.float())


def _num_accepted(logits: torch.Tensor, wanted: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """int64 [N]: guesses in a row that are the model's likeliest, as long as the model itself
    writes the right answer. logits, wanted: [N, g, V]; labels: [N, g]."""
    likeliest = wanted.argmax(-1)
    is_path = functional.pad(likeliest == labels, (1, 0), value=True)[:, :-1].cumprod(1)
    return ((logits.argmax(-1) == likeliest).cumprod(1) * is_path).sum(1)
