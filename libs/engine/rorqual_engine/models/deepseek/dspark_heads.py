"""From a block's rows to guesses: from left to right, each told of the token before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.norms import exact_product
from rorqual_engine.models.drafts import Drafts, Sampler


@dataclass(frozen=True)
class GuessRows:
    """What the stages say about S blocks of g guesses."""

    hidden: torch.Tensor
    """[S, g, D], before the final norm"""
    logits: torch.Tensor
    """fp32 [S, g, V], before the tokens between are known"""


class DraftHeads:
    """The Markov head and the confidence of the last stage."""

    def __init__(self, weights: DeepseekWeights, prefix: str, config: DeepseekConfig) -> None:
        """prefix: such as mtp.2. Raises: CorruptModel."""
        assert config.dspark is not None
        rank, shape = config.dspark.rank, (config.vocab_size, config.dspark.rank)
        self._before = weights.get(f"{prefix}.markov_head.embed.weight", shape)
        weights.check_shape(f"{prefix}.markov_head.head.weight", shape)
        self._bias = weights.linear(f"{prefix}.markov_head.head.weight")
        name = f"{prefix}.confidence_head.proj.weight"
        self._confidence = weights.vector(name, (1, config.hidden + rank))
        self._temperatures = torch.tensor(config.dspark.temperatures, device=weights.device)

    def guess(self, rows: GuessRows, anchors: torch.Tensor, sampler: Sampler) -> Drafts:
        """anchors: int64 [S], the token before each block's first guess."""
        tokens, logits, raw = [], [], []
        previous = anchors
        for k in range(rows.logits.shape[1]):
            told = functional.embedding(previous, self._before)
            corrected = rows.logits[:, k] + self._bias(told).float()
            both = torch.cat([rows.hidden[:, k].float(), told.float()], dim=-1)
            raw.append(exact_product(both, self._confidence)[:, 0])
            previous = sampler(k, corrected)
            tokens.append(previous)
            logits.append(corrected)
        raw_confidences = torch.stack(raw, dim=1)
        confidences = torch.sigmoid(raw_confidences / self._temperatures)
        return Drafts(
            torch.stack(tokens, dim=1), torch.stack(logits, dim=1), raw_confidences, confidences
        )
