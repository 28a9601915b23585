"""Synthetic load of a mixture layer: how often each expert is chosen, as traffic drifts.

Log-popularity of an expert is a part that all traffic shares, plus one by domain, plus a drift.
The mix of domains wanders, and now and then one domain becomes popular for some minutes. Prefill
draws single requests, each with a taste of its own. Tuned only so that a fresh EPLB placement lands
near the published balance (1.03-1.06 in prefill, 1.09 in decode).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
WINDOW_S = 10.0


@dataclass(frozen=True)
class ExpertTraffic:
    """Standard deviations of log-popularities, and time constants."""

    num_experts: int = 384
    num_chosen: int = 8
    num_domains: int = 6
    shared: float = 0.5
    domain: float = 0.7
    request: float = 0.6
    drift: float = 0.2
    drift_s: float = 1800.0
    mix: float = 0.3
    mix_s: float = 900.0
    switch: float = 1.0
    switch_every_s: float = 900.0
    switch_lasts_s: tuple[float, float] = (180.0, 600.0)


@dataclass(frozen=True)
class LayerLoad:
    """One layer over windows of WINDOW_S."""

    windows: Floats
    """[windows, experts] tokens of the whole window: what counters report."""
    steps: Floats
    """[windows, steps, experts] tokens of single steps."""


@dataclass(frozen=True)
class StepShape:
    """What one step of the group computes."""

    num_tokens: int
    request_tokens: float = 0.0
    """Median length of the requests that a step is made of; 0 = every token is another's."""
    steps_per_window: int = 300


DECODE_STEP = StepShape(num_tokens=64 * 128)
PREFILL_STEP = StepShape(num_tokens=8 * 16384, request_tokens=2500.0, steps_per_window=30)
"""Lengths are log-normal with deviation 1; the median as the module says: tuned."""


def draw_layer(
    traffic: ExpertTraffic, shape: StepShape, num_windows: int, num_steps: int, seed: int
) -> LayerLoad:
    """num_steps: single steps of each window."""
    rng = np.random.Generator(np.random.PCG64(seed))
    logits, mixes = _popularity(traffic, num_windows, rng)
    windows = np.empty((num_windows, traffic.num_experts))
    steps = np.empty((num_windows, num_steps, traffic.num_experts))
    for window in range(num_windows):
        mix = mixes[window]
        by_domain = _softmax(logits[window])
        popular = mix @ by_domain
        drawn = shape.num_tokens * traffic.num_chosen * shape.steps_per_window
        windows[window] = rng.multinomial(drawn, popular)
        for step in range(num_steps):
            if shape.request_tokens:
                steps[window, step] = _request_step(traffic, shape, logits[window], mix, rng)
            else:
                steps[window, step] = rng.multinomial(
                    shape.num_tokens * traffic.num_chosen, popular
                )
    return LayerLoad(windows, steps)


def _popularity(
    traffic: ExpertTraffic, num_windows: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Log-popularities [windows, domains, experts] and shares of the domains [windows, domains]."""
    experts, domains = traffic.num_experts, traffic.num_domains
    base = rng.normal(0, traffic.shared, experts) + rng.normal(
        0, traffic.domain, (domains, experts)
    )
    drift = _wander(traffic.drift, traffic.drift_s, num_windows, experts, rng)
    mix = _wander(traffic.mix, traffic.mix_s, num_windows, domains, rng)
    mix += _switches(traffic, num_windows, rng)
    return base[None] + drift[:, None], _softmax(mix)


def _wander(
    deviation: float, time_s: float, num_windows: int, size: int, rng: np.random.Generator
) -> Floats:
    """Ornstein-Uhlenbeck paths [windows, size]."""
    keep = np.exp(-WINDOW_S / time_s)
    path = np.empty((num_windows, size))
    path[0] = rng.normal(0, deviation, size)
    noise = rng.normal(0, deviation * np.sqrt(1 - keep * keep), (num_windows, size))
    for window in range(1, num_windows):
        path[window] = keep * path[window - 1] + noise[window]
    return path


def _switches(traffic: ExpertTraffic, num_windows: int, rng: np.random.Generator) -> Floats:
    extra = np.zeros((num_windows, traffic.num_domains))
    now_s = rng.exponential(traffic.switch_every_s)
    while now_s < num_windows * WINDOW_S:
        lasts_s = rng.uniform(*traffic.switch_lasts_s)
        first, last = int(now_s / WINDOW_S), int((now_s + lasts_s) / WINDOW_S)
        extra[first:last, rng.integers(traffic.num_domains)] += traffic.switch
        now_s += rng.exponential(traffic.switch_every_s)
    return extra


def _request_step(
    traffic: ExpertTraffic,
    shape: StepShape,
    logits: Floats,
    mix: Floats,
    rng: np.random.Generator,
) -> Floats:
    """Counts of a step that is made of whole requests, the last one cut."""
    counts = np.zeros(traffic.num_experts)
    left = shape.num_tokens
    while left > 0:
        length = min(left, 1 + int(rng.lognormal(np.log(shape.request_tokens), 1.0)))
        domain = rng.choice(len(mix), p=mix)
        taste = rng.normal(0, traffic.request, traffic.num_experts)
        counts += rng.multinomial(length * traffic.num_chosen, _softmax(logits[domain] + taste))
        left -= length
    return counts


def _softmax(logits: Floats) -> Floats:
    powers: Floats = np.exp(logits - logits.max(-1, keepdims=True))
    powers /= powers.sum(-1, keepdims=True)
    return powers
