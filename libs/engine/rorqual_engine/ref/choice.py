"""From logits to tokens on the device: the rules of sampling.py, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from rorqual_engine.ref.noise import uniforms

MAX_INVERSE = 1e30


class Sampling(Protocol):
    """What of a sampling.SamplingState is needed here."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def min_p(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def position(self) -> int: ...


@dataclass(frozen=True)
class RowChoices:
    """How each of R rows is chosen from; on the logits' device."""

    inverse: torch.Tensor
    """fp32 [R], 1 / temperature; 0 = greedy: the highest logit, the lowest id among equals"""
    top_k: torch.Tensor
    """int32 [R], 0 = off"""
    top_p: torch.Tensor
    """fp64 [R], 1 = off; on what top_k left"""
    min_p: torch.Tensor
    """fp64 [R], 0 = off"""
    seeds: torch.Tensor
    """int64 [R]"""
    positions: torch.Tensor
    """int64 [R], of the token to be chosen"""

    @classmethod
    def of(cls, states: Sequence[Sampling], device: torch.device | str) -> RowChoices:
        inverse = [min(1 / s.temperature, MAX_INVERSE) if s.temperature else 0.0 for s in states]
        seeds = [(s.seed & (1 << 64) - 1) for s in states]
        signed = [seed - (1 << 64) if seed >> 63 else seed for seed in seeds]

        def column(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return cls(
            column(inverse, torch.float32),
            column([s.top_k for s in states], torch.int32),
            column([s.top_p for s in states], torch.float64),
            column([s.min_p for s in states], torch.float64),
            column(signed, torch.int64),
            column([s.position for s in states], torch.int64),
        )


def choose_tokens(
    logits: torch.Tensor, choices: RowChoices, bitmask: torch.Tensor | None = None
) -> torch.Tensor:
    """int64 [R]: one token a row, by the rules and with the noise of sampling.sample.

    logits: fp32 [R, vocab] without NaN, left unchanged, vocab contiguous
    bitmask: int32 [R, ceil(vocab / 32)], bit set = allowed; None = all. A row has at least one
        allowed token with a logit above -inf.
    The weights of tokens may differ from sampling.sample's in the last bit of fp32, so a token
    differs only where the noise falls onto such a difference.
    """
    weights = kept_weights(logits, choices, bitmask)
    return draw(weights, uniforms(choices.seeds, choices.positions))


def kept_weights(
    logits: torch.Tensor, choices: RowChoices, bitmask: torch.Tensor | None
) -> torch.Tensor:
    """fp64 [R, vocab]: what a row's tokens weigh after all cuts, 0 = cut; the largest weighs 1.

    Of a greedy row its token alone weighs.
    """
    if not len(logits):
        return logits.double()
    allowed = logits
    if bitmask is not None:
        allowed = logits.masked_fill(~allowed_tokens(bitmask, logits), float("-inf"))
    peaks = allowed.max(-1, keepdim=True).values
    ids = torch.arange(logits.shape[1], device=logits.device)
    best = torch.where(allowed == peaks, ids, logits.shape[1]).amin(-1, keepdim=True)
    scaled = (allowed - peaks) * choices.inverse[:, None]
    weights = torch.where(allowed > float("-inf"), scaled.exp(), 0).double()
    ranked = scaled.masked_fill(weights == 0, float("-inf"))
    order = ranked.sort(dim=-1, descending=True, stable=True).indices
    masses = weights.gather(1, order).cumsum(-1)
    before = ids[None, :]
    limit = torch.where(choices.top_k > 0, choices.top_k, logits.shape[1]).long()[:, None]
    total = masses.gather(1, (limit - 1).clamp_max(logits.shape[1] - 1))
    passed = masses - weights.gather(1, order)
    is_in = (before < limit) & ((passed < choices.top_p[:, None] * total) | (before == 0))
    is_in |= (choices.top_p[:, None] >= 1) & (before < limit)
    is_kept = torch.zeros_like(is_in).scatter(1, order, is_in)
    kept = torch.where(is_kept & (weights >= choices.min_p[:, None]), weights, 0)
    greedy = torch.zeros_like(kept).scatter(1, best, 1.0)
    return torch.where(choices.inverse[:, None] > 0, kept, greedy)


def draw(weights: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """int64 [R]: the token that noise names in each row's weights, in order of ids.

    weights: fp64 [R, vocab] >= 0, not all 0 in a row; noise: fp64 [R] in [0, 1).
    """
    passed = weights.cumsum(-1)
    is_named = (passed > (noise * passed[:, -1])[:, None]) & (weights > 0)
    numbers = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, numbers, -1).amax(-1)
    first = torch.where(is_named, numbers, weights.shape[1]).amin(-1)
    return torch.minimum(first, last)


def allowed_tokens(bitmask: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """bool [R, vocab]"""
    tokens = torch.arange(logits.shape[1], device=logits.device)
    words = bitmask.to(logits.device)[:, tokens // 32]
    return ((words >> (tokens % 32)) & 1).bool()
