"""Demand as arrivals: what came in during the last seconds, from counters that only grow."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class CounterSource(NamedTuple):
    """One counter of one run of one instance; a restart is another source."""

    instance_id: str
    incarnation: int


class _Arrival(NamedTuple):
    at_s: float
    amount: int


class _Counter(NamedTuple):
    total: int
    seen_s: float


@dataclass(frozen=True, slots=True)
class DemandWindow:
    """Arrivals of the last window_s seconds over all sources. Immutable."""

    window_s: float
    started_s: float
    arrivals: tuple[_Arrival, ...] = ()
    counters: Mapping[CounterSource, _Counter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.window_s <= 0:
            raise ValueError(f"window_s must be > 0, got {self.window_s}")


def observe_counter(
    window: DemandWindow, source: CounterSource, total: int, now_s: float
) -> DemandWindow:
    """Take in a counter's value; what it grew by arrived now.

    The first value of a source is only a starting point: it may count long before the window. An
    instance's older incarnations are dropped, and a value lower than known is ignored.
    """
    known = window.counters.get(source)
    if known is not None and total < known.total:
        return window
    oldest_s = now_s - window.window_s
    counters = {
        other: counter
        for other, counter in window.counters.items()
        if other.instance_id != source.instance_id and counter.seen_s >= oldest_s
    }
    counters[source] = _Counter(total, now_s)
    grown = total - known.total if known is not None else 0
    arrivals = tuple(arrival for arrival in window.arrivals if arrival.at_s > oldest_s)
    if grown:
        arrivals = (*arrivals, _Arrival(now_s, grown))
    return replace(window, counters=counters, arrivals=arrivals)


def demand_per_s(window: DemandWindow, now_s: float) -> float:
    """Mean arrivals a second over the window, or over its first seconds; 0.0 without any."""
    oldest_s = now_s - window.window_s
    amount = sum(arrival.amount for arrival in window.arrivals if arrival.at_s > oldest_s)
    covered_s = min(window.window_s, max(now_s - window.started_s, 1.0))
    return amount / covered_s
