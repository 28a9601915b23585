"""From a block's rows to guesses: from left to right, each told of the token before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.norms import exact_product
from rorqual_engine.sampling import SamplingState, sample

_DRAFT_SEED = 0x5DEECE66D
"""Guesses must not be drawn with the noise that later judges them."""

Sampler = Callable[[int, torch.Tensor], torch.Tensor]
"""(k, fp32 logits [S, V]) -> int64 [S], the k-th guess of every block, k from 0."""


@dataclass(frozen=True)
class GuessRows:
    """What the stages say about S blocks of g guesses."""

    hidden: torch.Tensor
    """[S, g, D], before the final norm"""
    logits: torch.Tensor
    """fp32 [S, g, V], before the tokens between are known"""


@dataclass(frozen=True)
class Drafts:
    """S blocks of g guesses."""

    tokens: torch.Tensor
    """int64 [S, g]"""
    logits: torch.Tensor
    """fp32 [S, g, V]: what each was drawn from"""
    raw_confidences: torch.Tensor
    """fp32 [S, g], before temperature and sigmoid"""
    confidences: torch.Tensor
    """fp32 [S, g]: chance that a guess is accepted when all before it are"""


def greedy(k: int, logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of every row."""
    del k
    return logits.argmax(-1)


def by_temperature(states: Sequence[SamplingState]) -> Sampler:
    """Draws from softmax(logits / temperature), by the seed and position of each block's first
    guess; what else a state asks for only the model's own logits must obey."""

    def draw(k: int, logits: torch.Tensor) -> torch.Tensor:
        here = [
            SamplingState(
                temperature=state.temperature,
                seed=state.seed ^ _DRAFT_SEED,
                position=state.position + k,
            )
            for state in states
        ]
        return torch.from_numpy(sample(logits, here).ids).to(logits.device)

    return draw


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
