"""A replay of one real fleet on one machine: what it predicts, and how its few constants of the
host are fitted to a rehearsal."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import log
from pathlib import Path

import numpy as np
from rorqual_policy.step_cost import StepCost
from rorqual_sim.replay.fleet import Replay
from rorqual_sim.replay.options import OneHost, ReplayOptions
from rorqual_sim.replay.requests import Request
from rorqual_sim.traces import Trace, read_trace

from bench.http_load import StreamTiming

_MOST_SLOPE = 3.0
_SLOWDOWNS = [1.0 + 0.1 * step for step in range(21)]


@dataclass(frozen=True)
class Served:
    """One request as its client saw it."""

    at_s: float
    timing: StreamTiming


@dataclass(frozen=True)
class Waits:
    """Seconds of each request, in order of arrival."""

    ttft_s: Sequence[float]
    tpot_s: Sequence[float]

    def figures(self) -> dict[str, float]:
        """Means and P99."""
        return {
            "ttft_mean": statistics.mean(self.ttft_s),
            "ttft_p99": float(np.percentile(self.ttft_s, 99)),
            "tpot_mean": statistics.mean(self.tpot_s),
            "tpot_p99": float(np.percentile(self.tpot_s, 99)),
        }


def measured(served: Sequence[Served]) -> Waits:
    """What the clients saw; an answer that is not seen in two parts has no time per token."""
    streamed = filter(_is_streamed, served)
    return Waits([s.timing.ttft_s for s in served], [s.timing.tpot_s for s in streamed])


def _is_streamed(served: Served) -> bool:
    return len(served.timing.content_s) > 1


def as_trace(served: Sequence[Served], path: Path) -> Trace:
    """The very requests: arrivals and token counts as they were."""
    rows = [
        {
            "timestamp": s.at_s * 1e3,
            "input_length": s.timing.prompt_tokens - s.timing.cached_tokens,
            "output_length": s.timing.completion_tokens,
        }
        for s in served
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_trace(path)


def predicted(trace: Trace, options: ReplayOptions) -> Waits:
    """What the simulator says of the same requests."""
    requests = sorted(Replay(trace, options).run().requests, key=_number)
    return Waits([r.first_token_s - r.arrival_s for r in requests], [r.tpot_s for r in requests])


def _number(request: Request) -> int:
    return request.number


def fit_messages(alone: Sequence[Served], trace: Trace, options: ReplayOptions) -> ReplayOptions:
    """What services add to the engine's own times, from requests that had the fleet to themselves:
    before prefill, to its steps by a factor, at the handover, and to each decode step."""
    seen = measured(alone)
    slope = _median_slope(predicted(trace, options).ttft_s, seen.ttft_s)
    slope = min(max(slope, 1 / _MOST_SLOPE), _MOST_SLOPE)
    options = replace(options, cost=StepCost(*(slope * value for value in options.cost)))
    said = predicted(trace, options)
    before_s = statistics.median(a - b for a, b in zip(seen.ttft_s, said.ttft_s, strict=True))
    streamed = [
        (s.timing, said_s) for s, said_s in zip(alone, said.tpot_s, strict=True) if _is_streamed(s)
    ]
    steps = [timing.completion_tokens - 1 for timing, _ in streamed]
    added_s = [(t.completion_tokens - 1) * (t.tpot_s - said_s) for t, said_s in streamed]
    a_step_s = _median_slope(steps, added_s)
    handover_s = statistics.median(
        added - num * a_step_s for added, num in zip(added_s, steps, strict=True)
    )
    host = OneHost(before_prefill_s=max(0.0, before_s), handover_s=max(0.0, handover_s))
    decode = replace(options.decode, base_s=max(0.0, options.decode.base_s + a_step_s))
    return replace(options, host=host, decode=decode)


def _median_slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the lines through each two points: one bad point in four changes little."""
    slopes = [
        (y2 - y1) / (x2 - x1)
        for (x1, y1), (x2, y2) in combinations(zip(xs, ys, strict=True), 2)
        if x1 != x2
    ]
    return statistics.median(slopes) if slopes else 0.0


def fit_sharing(rehearsal: Sequence[Served], trace: Trace, options: ReplayOptions) -> ReplayOptions:
    """How much prefill and decode slow each other, so that a rehearsal comes out as it was."""
    seen = measured(rehearsal).figures()

    def off(candidate: ReplayOptions) -> float:
        said = predicted(trace, candidate).figures()
        return sum(abs(log(said[name] / seen[name])) for name in ("ttft_mean", "tpot_mean"))

    candidates = [
        replace(options, host=replace(options.host, prefill_slowdown=p, decode_slowdown=d))
        for p, d in product(_SLOWDOWNS, _SLOWDOWNS)
    ]
    return min(candidates, key=off)
