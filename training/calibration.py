"""Temperatures of the draft's confidences, fitted one after the other (sequential scaling).

Source: DSpark, section on calibration: expected calibration error over 15 bins, least over 41
temperatures from 0.1 to 10, for the chance that the first k guesses are all accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_NUM_BINS = 15
_CANDIDATES = torch.logspace(-1, 1, 41, dtype=torch.float64)


@dataclass(frozen=True)
class Calibration:
    """By position in a block."""

    temperatures: tuple[float, ...]
    errors_before: tuple[float, ...]
    errors_after: tuple[float, ...]


def fit_temperatures(confidences: torch.Tensor, accepted: torch.Tensor) -> Calibration:
    """confidences: fp32 [N, g], before temperature and sigmoid; accepted: int64 [N], how many
    guesses of a block were accepted, one after the other. N >= 1."""
    raw = confidences.double()
    plain = torch.sigmoid(raw).cumprod(1)
    before_this = torch.ones(len(raw), dtype=torch.float64)
    temperatures, after = [], []
    for k in range(raw.shape[1]):
        is_accepted = accepted > k
        errors = [
            calibration_error(before_this * torch.sigmoid(raw[:, k] / t), is_accepted)
            for t in _CANDIDATES
        ]
        best = min(range(len(errors)), key=errors.__getitem__)
        temperatures.append(float(_CANDIDATES[best]))
        after.append(errors[best])
        before_this = before_this * torch.sigmoid(raw[:, k] / _CANDIDATES[best])
    before = [calibration_error(plain[:, k], accepted > k) for k in range(raw.shape[1])]
    return Calibration(tuple(temperatures), tuple(before), tuple(after))


def calibration_error(chances: torch.Tensor, happened: torch.Tensor) -> float:
    """Mean distance of chance and share over bins of equal width, weighted by their rows."""
    bins = (chances * _NUM_BINS).long().clamp_max(_NUM_BINS - 1)
    sums = torch.zeros((2, _NUM_BINS), dtype=torch.float64)
    sums[0].index_add_(0, bins, chances.double())
    sums[1].index_add_(0, bins, happened.double())
    return float((sums[0] - sums[1]).abs().sum() / len(chances))
