"""From logits to tokens; a row's result depends on nothing but that row.

The noise is counter-based: (seed, position) names one uniform number, so a request that moves to
another machine, batch or step size draws exactly what it would have drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from rorqual_engine.kernels.choose import choose_token
from rorqual_engine.kernels.compiling import compile_function
from rorqual_engine.kernels.registry import find_kernel
from rorqual_engine.logit_rules import LogitEditor
from rorqual_engine.ref.choice import RowChoices
from rorqual_engine.ref.precision import has_fp64

FloatArray = npt.NDArray[np.float32]
UIntArray = npt.NDArray[np.uint64]

_MAX_INVERSE = 1e30


@dataclass(frozen=True)
class SamplingState:
    """What one row asks for at this step."""

    temperature: float = 0.0
    """0 = greedy: the highest logit, the lowest id among equals."""
    top_p: float = 1.0
    """(0, 1]; 1 = off. Applied after top_k, on what that left."""
    top_k: int = 0
    """0 = off"""
    min_p: float = 0.0
    """[0, 1); drops tokens less likely than min_p times the likeliest. 0 = off."""
    seed: int = 0
    position: int = 0
    """Absolute position of the token to draw: the length of the sequence so far."""
    num_logprobs: int | None = None
    """None: no logprobs. n: those of the chosen token and of the n likeliest."""

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and 0 < self.top_p <= 1 and self.top_k >= 0):
            raise ValueError(f"sampling out of range: {self}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p out of range: {self}")


_GREEDY = SamplingState()


@dataclass(frozen=True)
class RowLogprobs:
    """Of the distribution as the model gave it: before penalties, bias, temperature, masks and
    cuts."""

    logprob: float
    """Of the chosen token."""
    top_ids: list[int]
    """The likeliest tokens, likeliest first, the lower id first among equals."""
    top_logprobs: list[float]


@dataclass(frozen=True)
class SampledTokens:
    """One step's choice for every row."""

    ids: npt.NDArray[np.int64]
    """[B]"""
    logprobs: list[RowLogprobs | None]
    """[B]; None where num_logprobs is None."""


def sample(
    logits: torch.Tensor,
    states: Sequence[SamplingState],
    bitmask: torch.Tensor | None = None,
    editors: Sequence[LogitEditor | None] = (),
) -> SampledTokens:
    """Chooses one token a row.

    logits: float32 [B, vocab], left unchanged
    bitmask: int32 [B, ceil(vocab / 32)], bit set = token allowed (xgrammar's format); rows
        without constraint are all ones. At least one token of a row must be allowed. It outranks
        the editors.
    editors: penalties and biases, one a row or none at all; they are not told of the choice.
    """
    if len(states) != len(logits):
        raise ValueError(f"{len(logits)} rows of logits, {len(states)} states")
    edited = [row for row, e in enumerate(editors) if e is not None and e.is_active]
    if edited:
        ids = _choose_with_edits(logits, states, bitmask, editors, edited)
    else:
        ids = _choose(logits, states, bitmask)
    logprobs = [
        None
        if state.num_logprobs is None
        else row_logprobs(logits[row], int(ids[row]), state.num_logprobs)
        for row, state in enumerate(states)
    ]
    return SampledTokens(ids, logprobs)


def _choose_with_edits(
    logits: torch.Tensor,
    states: Sequence[SamplingState],
    bitmask: torch.Tensor | None,
    editors: Sequence[LogitEditor | None],
    edited: list[int],
) -> npt.NDArray[np.int64]:
    """As _choose; only the edited rows are copied and chosen for apart."""
    part = logits[edited]
    for row, place in enumerate(edited):
        editor = editors[place]
        assert editor is not None
        editor.apply(part[row])
    part_mask = None if bitmask is None else bitmask[edited]
    chosen = _choose(part, [states[row] for row in edited], part_mask)
    if len(edited) == len(states):
        return chosen
    apart = set(edited)
    others = [_GREEDY if row in apart else state for row, state in enumerate(states)]
    ids = _choose(logits, others, bitmask)
    ids[edited] = chosen
    return ids


def _choose(
    logits: torch.Tensor, states: Sequence[SamplingState], bitmask: torch.Tensor | None
) -> npt.NDArray[np.int64]:
    if logits.device.type != "cpu":
        if has_fp64(logits.device):
            return _choose_on_device(logits, states, bitmask)
        logits, bitmask = logits.cpu(), None if bitmask is None else bitmask.cpu()
    allowed = logits if bitmask is None else _mask(logits, bitmask)
    ids: npt.NDArray[np.int64] = allowed.argmax(dim=-1).numpy()
    drawing = [row for row, state in enumerate(states) if state.temperature > 0]
    if drawing:
        ids[drawing] = _draw(allowed[drawing], [states[row] for row in drawing])
    return ids


def _choose_on_device(
    logits: torch.Tensor, states: Sequence[SamplingState], bitmask: torch.Tensor | None
) -> npt.NDArray[np.int64]:
    """Only the tokens leave the device."""
    device = logits.device
    words = None if bitmask is None else bitmask.to(device)
    choices = RowChoices.of(states, device)
    ids: torch.Tensor = find_kernel("choose_tokens", device)(logits, choices, words)
    return ids.cpu().numpy()


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for every (seed, position), with 53 random bits.

    Two rounds of the splitmix64 finaliser, the position mixed into the hashed seed.
    """
    mask = (1 << 64) - 1
    seed = np.array([s & mask for s in seeds], dtype=np.uint64)
    position = np.array([p & mask for p in positions], dtype=np.uint64)
    mixed = _finalise(_finalise(seed + np.uint64(0x9E3779B97F4A7C15)) ^ _finalise(~position))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def row_logprobs(logits: torch.Tensor, chosen: int, num_top: int) -> RowLogprobs:
    """logits: float32 [vocab]"""
    row = logits.cpu().numpy().astype(np.float64)
    peak = row.max()
    log_total = float(peak + np.log(np.exp(row - peak).sum()))
    num_top = min(num_top, len(row))
    top: list[int] = []
    if num_top:
        least = np.partition(row, -num_top)[-num_top]
        candidates = np.flatnonzero(row >= least)
        order = np.argsort(-row[candidates], kind="stable")[:num_top]
        top = candidates[order].tolist()
    return RowLogprobs(
        float(row[chosen]) - log_total, top, [float(row[i]) - log_total for i in top]
    )


def _draw(logits: torch.Tensor, states: Sequence[SamplingState]) -> npt.NDArray[np.int64]:
    rows: FloatArray = logits.cpu().numpy()
    noise = uniforms([s.seed for s in states], [s.position for s in states])
    inverse = np.array([_inverse(s.temperature) for s in states], dtype=np.float32)[:, None]
    scaled = (rows - rows.max(axis=1, keepdims=True)) * inverse
    weights = np.exp(scaled)
    totals = weights.sum(axis=1)
    chosen = np.empty(len(states), dtype=np.int64)
    choose = _compiled_choose()
    for row, state in enumerate(states):
        cuts = (state.top_k, state.top_p, state.min_p)
        chosen[row] = choose(scaled[row], weights[row], float(totals[row]), *cuts, noise[row])
    return chosen


def _inverse(temperature: float) -> float:
    """1 / temperature, finite in float32: the likeliest token alone is left long before."""
    return min(1.0 / temperature, _MAX_INVERSE)


@cache
def _compiled_choose() -> Callable[..., int]:
    compiled: Callable[..., int] = compile_function(choose_token)
    return compiled


def _mask(logits: torch.Tensor, bitmask: torch.Tensor) -> torch.Tensor:
    """A copy with every forbidden token at -inf; logits itself when nothing is forbidden."""
    constrained = (bitmask != -1).any(dim=1).nonzero().flatten().tolist()
    if not constrained:
        return logits
    masked = logits.clone()
    words = bitmask[constrained].cpu().contiguous().numpy().view(np.uint8)
    bits = np.unpackbits(words, axis=1, bitorder="little", count=logits.shape[1])
    forbidden = torch.from_numpy(bits == 0).to(logits.device)
    masked[constrained] = masked[constrained].masked_fill(forbidden, float("-inf"))
    return masked


def _finalise(value: UIntArray) -> UIntArray:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
