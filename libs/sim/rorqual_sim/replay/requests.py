"""The requests of a trace as the fleet sees them, and when each of them comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rorqual_sim.prefix import page_nodes
from rorqual_sim.replay.options import ReplayOptions
from rorqual_sim.traces import Trace

_STORE_PAGE_TOKENS = 512


@dataclass
class Request:
    """One request and what has become of it; times are infinity until they happen."""

    number: int
    input_tokens: int
    output_tokens: int
    bucket: int
    pages: Sequence[int]
    page_tokens: int
    warm_tokens: int
    next_number: int = -1
    """The session's next request, where it waits for this one's answer."""
    pause_s: float = 0.0
    """From the answer to that next request."""
    arrival_s: float = float("inf")
    first_token_s: float = float("inf")
    done_s: float = float("inf")
    cached_tokens: int = 0
    num_emitted: int = 0
    num_restarts: int = 0
    holder: tuple[int, int] | None = None
    """Group and rank that it was pushed to; None where groups pull."""
    # Where it is now:
    remaining_tokens: int = 0
    context_tokens: int = 0
    left_s: float = 0.0
    ready_s: float = 0.0
    estimate_s: float = 0.0

    @property
    def total_tokens(self) -> int:
        """Prompt and what was answered so far."""
        return self.input_tokens + self.num_emitted

    @property
    def tpot_s(self) -> float:
        """Seconds a token after the first."""
        return (self.done_s - self.first_token_s) / max(1, self.output_tokens - 1)


@dataclass
class Schedule:
    """Requests, and the times of those that do not wait for an answer."""

    requests: list[Request]
    arrivals: list[tuple[float, int]] = field(default_factory=list)


def schedule(trace: Trace, options: ReplayOptions, buckets: Sequence[int]) -> Schedule:
    """When each request of the trace comes. buckets: one a request."""
    starts = _session_starts(trace, options)
    plan = Schedule(_requests(trace, buckets))
    arrival_s = trace.arrival_s.tolist()
    for number, before in enumerate(_predecessors(trace)):
        if options.is_closed_loop and before >= 0:
            answered_s = arrival_s[before] + float(trace.service_s[before])
            plan.requests[before].next_number = number
            plan.requests[before].pause_s = max(0.0, arrival_s[number] - answered_s) / options.speed
            continue
        at_s = (starts.get(int(trace.session[number]), 0.0) + arrival_s[number]) / options.speed
        if at_s <= options.limit_s:
            plan.arrivals.append((at_s, number))
    plan.arrivals.sort()
    return plan


def _predecessors(trace: Trace) -> list[int]:
    """For each request the one before it in its session, -1 if it is the first."""
    latest: dict[int, int] = {}
    before = []
    for number, session in enumerate(trace.session.tolist()):
        before.append(latest.get(session, -1) if session >= 0 else -1)
        latest[session] = number
    return before


def _session_starts(trace: Trace, options: ReplayOptions) -> dict[int, float]:
    """Recorded sessions have times of their own; where they begin is drawn."""
    if not trace.is_relative:
        return {}
    rng = np.random.Generator(np.random.PCG64(options.seed))
    sessions = np.unique(trace.session).tolist()
    return dict(zip(sessions, rng.uniform(0, options.spread_s, len(sessions)), strict=True))


def _requests(trace: Trace, buckets: Sequence[int]) -> list[Request]:
    page_tokens = max(_STORE_PAGE_TOKENS // trace.block_tokens, 1) * trace.block_tokens
    start, nodes, _ = page_nodes(trace, page_tokens)
    return [
        Request(
            number=number,
            input_tokens=int(trace.input_tokens[number]),
            output_tokens=max(1, int(trace.output_tokens[number])),
            bucket=int(buckets[number]),
            pages=nodes[start[number] : start[number + 1]].tolist(),
            page_tokens=page_tokens,
            warm_tokens=int(trace.warm_tokens[number]),
        )
        for number in range(len(trace))
    ]
