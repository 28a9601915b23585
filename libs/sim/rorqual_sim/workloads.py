"""From a trace to the load of a large fleet: copies of it, or sessions that begin at random."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rorqual_policy.buckets import BUCKET_LIMITS_TOKENS
from rorqual_policy.step_cost import StepCost

from rorqual_sim.compiled import compiled
from rorqual_sim.prefix import NEVER, prefix_hits
from rorqual_sim.traces import Trace

_LONGEST_TICK_S = 10.0


@dataclass(frozen=True)
class PricedTrace:
    """A trace with what each request costs when its prefix comes from a shared store."""

    trace: Trace
    cost: StepCost
    cached_tokens: NDArray[np.int64]
    """At most input_tokens - 1: one token is always computed."""
    work_s: NDArray[np.float64]

    @property
    def total_work_s(self) -> float:
        return float(self.work_s.sum())


@dataclass(frozen=True)
class Workload:
    """Prefill requests in order of arrival; arrays have one entry a request."""

    arrival_s: NDArray[np.float64]
    source: NDArray[np.int32]
    """The trace's request."""
    copy: NDArray[np.int32]
    input_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]
    work_s: NDArray[np.float64]
    estimate_s: NDArray[np.float64]
    """Work as the router sees it; equal to work_s unless noise was added."""
    bucket: NDArray[np.int8]
    num_copies: int

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True)
class Burst:
    """Every period_s, load is ratio times its mean for length_s."""

    ratio: float = 1.5
    length_s: float = 20.0
    period_s: float = 120.0


def price(trace: Trace, cost: StepCost, lifetime_s: float = NEVER) -> PricedTrace:
    """The trace's work with a shared store that keeps a page for lifetime_s."""
    hits = prefix_hits(trace, (lifetime_s,)).hit_tokens[0]
    cached = np.minimum(hits, trace.input_tokens - 1)
    return PricedTrace(trace, cost, cached, work_of(cost, trace.input_tokens, cached))


def work_of(
    cost: StepCost, input_tokens: NDArray[np.int64], cached_tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Seconds of a rank that each prompt takes, steps' own time not counted."""
    new = (input_tokens - cached_tokens).astype(np.float64)
    work: NDArray[np.float64] = new * (cost.a1_s + cost.a2_s * cached_tokens + cost.a3_s * new)
    return work


def build_workload(
    priced: PricedTrace,
    *,
    busy_ranks: float,
    window_s: float,
    seed: int,
    burst: Burst | None = None,
) -> Workload:
    """Load that keeps busy_ranks ranks busy with work on average, for window_s seconds.

    A trace of sessions: sessions begin at random at a constant rate and keep their own gaps; what
    falls into the window counts. Any other trace: as many copies as it takes, each turned by a
    random offset, arrivals spread within the trace's clock ticks.

    Raises: ValueError for a load or window that is not positive.
    """
    if busy_ranks <= 0 or window_s <= 0:
        raise ValueError(f"need busy_ranks, window_s > 0; got {busy_ranks}, {window_s}")
    rng = np.random.Generator(np.random.PCG64(seed))
    of_sessions = priced.trace.is_relative
    build = _from_sessions if of_sessions else _from_copies
    arrival_s, source, copy, num_copies = build(priced, busy_ranks, window_s, rng)
    if burst is not None:
        arrival_s = _bunched(arrival_s, burst)
    order = np.argsort(arrival_s, kind="stable")
    source = source[order]
    work_s = priced.work_s[source]
    input_tokens = priced.trace.input_tokens[source]
    return Workload(
        arrival_s=arrival_s[order],
        source=source,
        copy=copy[order],
        input_tokens=input_tokens,
        cached_tokens=priced.cached_tokens[source],
        work_s=work_s,
        estimate_s=work_s,
        bucket=np.searchsorted(BUCKET_LIMITS_TOKENS, input_tokens, side="right").astype(np.int8),
        num_copies=num_copies,
    )


def with_estimate_noise(
    workload: Workload, sigma: float, seed: int, bounded_by: StepCost | None = None
) -> Workload:
    """The same load, work estimates off by a log-normal factor of median 1.

    bounded_by: no estimate is more than the whole prompt costs by this. A router's never is: it
    errs in how much of the prompt is stored, between nothing and all of it.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    estimate_s = workload.work_s * np.exp(rng.normal(0.0, sigma, len(workload)))
    if bounded_by is not None:
        nothing = np.zeros_like(workload.input_tokens)
        whole_s = work_of(bounded_by, workload.input_tokens, nothing)
        estimate_s = np.minimum(estimate_s, whole_s)
    return replace(workload, estimate_s=estimate_s)


_Arrivals = tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32], int]


def _from_copies(
    priced: PricedTrace, busy_ranks: float, window_s: float, rng: np.random.Generator
) -> _Arrivals:
    trace = priced.trace
    span_s = float(trace.arrival_s[-1]) + _tick_s(trace.arrival_s)[-1]
    num_exact = busy_ranks * span_s / priced.total_work_s
    num_copies = int(np.ceil(num_exact))
    offsets = rng.uniform(0.0, span_s, num_copies)
    ticks = _tick_s(trace.arrival_s)
    times, sources, copies = [], [], []
    for copy in range(num_copies):
        at_s = np.mod(trace.arrival_s + rng.uniform(0.0, ticks) + offsets[copy], span_s)
        kept = at_s < window_s
        if copy == num_copies - 1:  # only part of the last copy is wanted
            kept &= rng.uniform(size=len(trace)) < num_exact - copy
        index = np.flatnonzero(kept)
        times.append(at_s[index])
        sources.append(index.astype(np.int32))
        copies.append(np.full(len(index), copy, np.int32))
    return np.concatenate(times), np.concatenate(sources), np.concatenate(copies), num_copies


def _tick_s(arrival_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each arrival the time to the next different one: the clock may have been coarse."""
    distinct, place = np.unique(arrival_s, return_inverse=True)
    gaps = np.diff(distinct)
    last = np.median(gaps) if len(gaps) else 1.0
    ticks: NDArray[np.float64] = np.minimum(np.append(gaps, last), _LONGEST_TICK_S)[place]
    return ticks


def _from_sessions(
    priced: PricedTrace, busy_ranks: float, window_s: float, rng: np.random.Generator
) -> _Arrivals:
    trace = priced.trace
    session_start = np.flatnonzero(np.diff(trace.session, prepend=-1))
    bounds = np.append(session_start, len(trace)).astype(np.int64)
    lengths_s = np.maximum.reduceat(trace.arrival_s, session_start)
    starts_per_s = busy_ranks / priced.total_work_s
    counts = rng.poisson(starts_per_s * (lengths_s + window_s))
    which = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    begin_s = rng.uniform(size=len(which)) * (lengths_s[which] + window_s) - lengths_s[which]
    num = _sessions_in_window(
        trace.arrival_s,
        bounds,
        which,
        begin_s,
        window_s,
        np.empty(0),
        *(np.empty(0, np.int32),) * 2,
    )
    times, sources = np.empty(num), np.empty(num, np.int32)
    copies = np.empty(num, np.int32)
    _sessions_in_window(trace.arrival_s, bounds, which, begin_s, window_s, times, sources, copies)
    return times, sources, copies, len(which)


@compiled
def _sessions_in_window(
    arrival_s: NDArray[np.float64],
    bounds: NDArray[np.int64],
    which: NDArray[np.int64],
    begin_s: NDArray[np.float64],
    window_s: float,
    times: NDArray[np.float64],
    sources: NDArray[np.int32],
    copies: NDArray[np.int32],
) -> int:
    """Number of requests that fall into the window; written where there is room for them."""
    num = 0
    for copy in range(len(which)):
        for request in range(bounds[which[copy]], bounds[which[copy] + 1]):
            at_s = begin_s[copy] + arrival_s[request]
            if 0.0 <= at_s < window_s:
                if num < len(times):
                    times[num] = at_s
                    sources[num] = request
                    copies[num] = copy
                num += 1
    return num


def _bunched(arrival_s: NDArray[np.float64], burst: Burst) -> NDArray[np.float64]:
    """Times moved so that load rises in bursts and its mean stays: in burst-free time a request
    comes when the integrated load reaches its old time."""
    calm_s = burst.period_s - burst.length_s
    heavy_s = burst.ratio * burst.length_s
    base = (burst.period_s - heavy_s) / calm_s
    period, within = np.divmod(arrival_s, burst.period_s)
    in_burst = within < heavy_s
    moved = np.where(
        in_burst,
        within / burst.ratio,
        burst.length_s + (within - heavy_s) / base,
    )
    times: NDArray[np.float64] = period * burst.period_s + moved
    return times
