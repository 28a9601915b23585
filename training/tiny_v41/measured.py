"""What a step, or a look at held-out exercises, found out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from training.tiny_v41.batches import Batch


@dataclass(frozen=True)
class Total:
    """Of all batches of a step."""

    weight: float
    num_batches: int
    num_anchors: int
    num_shapes: int

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Total:
        return cls(
            sum(float(batch.weights.sum()) for batch in batches),
            len(batches),
            sum(len(batch.anchors.rows) for batch in batches),
            sum(len(batch.shown.rows) for batch in batches if batch.shown),
        )


@dataclass
class Measured:
    """Sums over batches."""

    loss: float = 0.0
    answer_loss: float = 0.0
    num_answer_tokens: int = 0
    index_loss: float = 0.0
    naming_loss: float = 0.0
    """Of pictures' rows, as its share of a step's mean"""
    num_batches: int = 0
    counts: torch.Tensor | None = None
    """int64 [layers, 2, experts]: rows of text and of images; of a draft module [stages, 1, ..]"""
    exact: dict[str, list[bool]] = field(default_factory=dict)
    """By family: whether every token of an exercise's last answer was the likeliest"""

    accepted: dict[str, list[int]] = field(default_factory=dict)
    """By family: how many guesses of a block were the model's own likeliest, one after the other"""

    def add(self, other: Measured) -> None:
        self.loss += other.loss
        self.answer_loss += other.answer_loss
        self.num_answer_tokens += other.num_answer_tokens
        self.index_loss += other.index_loss
        self.naming_loss += other.naming_loss
        self.num_batches += other.num_batches
        assert other.counts is not None
        self.counts = other.counts if self.counts is None else self.counts + other.counts
        for family, found in other.exact.items():
            self.exact.setdefault(family, []).extend(found)
        for family, lengths in other.accepted.items():
            self.accepted.setdefault(family, []).extend(lengths)

    def exact_shares(self) -> dict[str, float]:
        return {f: round(sum(e) / len(e), 3) for f, e in sorted(self.exact.items())}

    def accepted_lengths(self) -> dict[str, float]:
        """Mean tokens of a round, with the one that the model adds."""
        return {f: round(1 + sum(a) / len(a), 3) for f, a in sorted(self.accepted.items())}
