"""How many requests come in each second of a day: a daily curve, noise and bursts."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import numpy as np
from numpy.typing import NDArray

DAY_S = 86_400


@dataclass(frozen=True)
class Traffic:
    """An assumed day; ratios are to the peak of its curve."""

    peak_per_s: float
    trough: float = 0.35
    """Load at four in the morning; the peak is at four in the afternoon."""
    bursts_per_hour: float = 1.0
    burst_ratios: tuple[float, float] = (1.1, 1.5)
    """A burst multiplies the load by something between these."""
    burst_s: tuple[float, float] = (60.0, 300.0)
    burst_ramp_s: float = 20.0
    noise: float = 0.03
    """Standard deviation of a slow swing around the curve."""
    noise_s: float = 60.0
    """How slow it is."""


def rates_per_s(traffic: Traffic, num_s: int, seed: int, start_s: int = 0) -> NDArray[np.float64]:
    """Mean arrivals in each of num_s seconds from start_s of the day on."""
    rng = np.random.Generator(np.random.PCG64(seed))
    at_s = np.arange(start_s, start_s + num_s, dtype=np.float64)
    depth = (1.0 - traffic.trough) / 2
    curve = 1.0 - depth - depth * np.cos(2 * pi * (at_s / DAY_S - 4 / 24))
    return traffic.peak_per_s * curve * _swing(traffic, num_s, rng) * _bursts(traffic, num_s, rng)


def arrivals(rates: NDArray[np.float64], num_classes: int, seed: int) -> NDArray[np.int64]:
    """[seconds, classes]: how many of each class really come."""
    rng = np.random.Generator(np.random.PCG64(seed + 1))
    return rng.poisson(rates[:, None] / num_classes, (len(rates), num_classes))


def _swing(traffic: Traffic, num_s: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A mean-reverting walk around 1."""
    kept = np.exp(-1.0 / traffic.noise_s)
    steps = rng.normal(0.0, traffic.noise * np.sqrt(1 - kept**2), num_s)
    swing = np.empty(num_s)
    value = 0.0
    for second, step in enumerate(steps):
        value = kept * value + step
        swing[second] = value
    return np.maximum(0.0, 1.0 + swing)


def _bursts(traffic: Traffic, num_s: int, rng: np.random.Generator) -> NDArray[np.float64]:
    factor = np.ones(num_s)
    at_s = np.arange(num_s)
    for _ in range(rng.poisson(traffic.bursts_per_hour * num_s / 3600)):
        begin_s = rng.uniform(0, num_s)
        length_s = rng.uniform(*traffic.burst_s)
        extra = rng.uniform(*traffic.burst_ratios) - 1.0
        inside = np.minimum(at_s - begin_s, begin_s + length_s - at_s) / traffic.burst_ramp_s
        factor = np.maximum(factor, 1.0 + extra * np.clip(inside, 0.0, 1.0))
    return factor
