"""From a block's rows to guesses: from left to right, each told of the token before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from rorqual_engine.models.deepseek.norms import exact_product
from rorqual_engine.models.drafts import Drafts, Sampler
from rorqual_engine.models.linear import Linear


@dataclass(frozen=True)
class GuessRows:
    """What the stages say about S blocks of g guesses."""

    hidden: torch.Tensor
    """[S, g, D], before the final norm"""
    logits: torch.Tensor
    """fp32 [S, g, V], before the tokens between are known"""


@dataclass(frozen=True)
class DraftHeads:
    """The Markov head and the confidence."""

    before: torch.Tensor
    """[vocabulary of the model, rank]: what a token says about the one behind it"""
    bias: Linear
    """rank -> V"""
    confidence: torch.Tensor
    """fp32 [1, D + rank]"""
    temperatures: Sequence[float]
    """By place in the block: what the confidence is divided by"""
    token_ids: torch.Tensor | None = None
    """int64 [V], ascending: the tokens that may be guessed; None = all"""

    def guess(self, rows: GuessRows, anchors: torch.Tensor, sampler: Sampler) -> Drafts:
        """anchors: int64 [S], the token before each block's first guess."""
        tokens, logits, told = [], [], []
        previous = anchors
        for k in range(rows.logits.shape[1]):
            told.append(functional.embedding(previous, self.before))
            logits.append(rows.logits[:, k] + self.bias(told[k]).float())
            chosen = sampler(k, logits[k])
            previous = chosen if self.token_ids is None else self.token_ids[chosen]
            tokens.append(previous)
        both = torch.cat([rows.hidden.float(), torch.stack(told, dim=1).float()], dim=-1)
        raw_confidences = exact_product(both.flatten(0, 1), self.confidence).view(both.shape[:2])
        temperatures = torch.tensor(self.temperatures, device=raw_confidences.device)
        confidences = torch.sigmoid(raw_confidences / temperatures)
        return Drafts(
            torch.stack(tokens, dim=1), torch.stack(logits, dim=1), raw_confidences, confidences
        )
