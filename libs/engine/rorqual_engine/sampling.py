"""From logits to tokens; a row's result depends on nothing but that row.

The noise is counter-based: (seed, position) names one uniform number, so a request that moves to
another machine, batch or step size draws exactly what it would have drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rorqual_engine.kernels.choose_ops import Columns, choose_ids, score_rows
from rorqual_engine.kernels.registry import find_kernel
from rorqual_engine.logit_rules import LogitEditor
from rorqual_engine.ref.choice import RowChoices
from rorqual_engine.ref.precision import has_fp64

Int64Array = npt.NDArray[np.int64]
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

    ids: Int64Array
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

    logits: float32 [B, vocab], on the CPU also bfloat16; left unchanged
    bitmask: int32 [B, ceil(vocab / 32)], bit set = token allowed (xgrammar's format); rows
        without constraint are all ones. At least one token of a row must be allowed. It outranks
        the editors.
    editors: penalties and biases, one a row or none at all; they are not told of the choice.
    """
    if len(states) != len(logits):
        raise ValueError(f"{len(logits)} rows of logits, {len(states)} states")
    edited = _edited_rows(logits, editors)
    if logits.device.type == "cpu":
        ids = choose_ids(logits, edited, bitmask, _columns(states))
    else:
        ids = _choose_on_device(logits, states, bitmask, edited)
    return SampledTokens(ids, _logprobs(logits, states, ids))


def _logprobs(
    logits: torch.Tensor, states: Sequence[SamplingState], ids: Int64Array
) -> list[RowLogprobs | None]:
    found: list[RowLogprobs | None] = [None] * len(states)
    wanted = {row: s.num_logprobs for row, s in enumerate(states) if s.num_logprobs is not None}
    if wanted:
        rows = list(wanted)
        part = logits if len(rows) == len(logits) else logits[rows]
        scores = score(part, ids[rows].tolist(), list(wanted.values()))
        for row, row_scores in zip(rows, scores, strict=True):
            found[row] = row_scores
    return found


def _edited_rows(
    logits: torch.Tensor, editors: Sequence[LogitEditor | None]
) -> dict[int, torch.Tensor]:
    """Copies of the rows that an editor changes, changed."""
    active = [(row, e) for row, e in enumerate(editors) if e is not None and e.is_active]
    if not active:
        return {}
    copies = logits[[row for row, _ in active]].float()
    for copy, (_, editor) in zip(copies, active, strict=True):
        editor.apply(copy)
    return {row: copies[place] for place, (row, _) in enumerate(active)}


def _choose_on_device(
    logits: torch.Tensor,
    states: Sequence[SamplingState],
    bitmask: torch.Tensor | None,
    edited: dict[int, torch.Tensor],
) -> Int64Array:
    """Only the tokens leave the device."""
    device = logits.device
    if edited:
        logits = logits.clone()
        logits[list(edited)] = torch.stack(list(edited.values()))
    if not has_fp64(device):
        mask = None if bitmask is None else bitmask.cpu()
        return choose_ids(logits.cpu(), {}, mask, _columns(states))
    words = None if bitmask is None else bitmask.to(device)
    choices = RowChoices.of(states, device)
    ids: torch.Tensor = find_kernel("choose_tokens", device)(logits, choices, words)
    return ids.cpu().numpy()


def _columns(states: Sequence[SamplingState]) -> Columns:
    if all(state.temperature == 0 for state in states):
        zeros = np.zeros(len(states))
        return Columns(zeros.astype(np.float32), zeros.astype(np.int64), zeros, zeros, zeros)
    return Columns(
        np.array([_inverse(s.temperature) for s in states], np.float32),
        np.array([s.top_k for s in states], np.int64),
        np.array([s.top_p for s in states], np.float64),
        np.array([s.min_p for s in states], np.float64),
        uniforms([s.seed for s in states], [s.position for s in states]),
    )


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for every (seed, position), with 53 random bits.

    Two rounds of the splitmix64 finaliser, the position mixed into the hashed seed.
    """
    mask = (1 << 64) - 1
    seed = np.array([s & mask for s in seeds], dtype=np.uint64)
    position = np.array([p & mask for p in positions], dtype=np.uint64)
    mixed = _finalise(_finalise(seed + np.uint64(0x9E3779B97F4A7C15)) ^ _finalise(~position))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def score(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[RowLogprobs]:
    """The log probabilities of one token a row and of its row's num_top likeliest.

    logits: float32 or bfloat16 [B, vocab]
    """
    found = score_rows(logits.cpu(), token_ids, num_top)
    return [RowLogprobs(*scores) for scores in found]


def _inverse(temperature: float) -> float:
    """1 / temperature, finite in float32: the likeliest token alone is left long before."""
    return min(1.0 / temperature, _MAX_INVERSE) if temperature else 0.0


def _finalise(value: UIntArray) -> UIntArray:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
