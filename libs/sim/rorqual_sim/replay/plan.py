"""The smallest fleet that meets its objectives on a trace, and what it costs and earns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rorqual_sim.replay.fleet import Replay
from rorqual_sim.replay.options import ReplayOptions
from rorqual_sim.replay.report import summary
from rorqual_sim.traces import Trace

_OBJECTIVE = re.compile(r"(ttft|tpot)(?:_(mean|p50|p90|p95|p99|max))?=([0-9.]+)(ms|s)")


@dataclass(frozen=True)
class Objective:
    """An upper bound of one statistic of the waits."""

    measure: str
    """`ttft` or `tpot`."""
    statistic: str
    limit_s: float

    def value_s(self, values: Mapping[str, Any]) -> float:
        """What a replay's summary says; 0 where there was nothing to measure."""
        return float(values[f"{self.measure}_s"].get(self.statistic, 0.0))

    def __str__(self) -> str:
        return f"{self.measure}_{self.statistic} <= {self.limit_s:g} s"


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """`ttft_p99=1s,tpot=5ms`: a statistic that is not named is the mean.

    Raises: ValueError naming the part that can't be read.
    """
    found = []
    for part in text.split(","):
        match = _OBJECTIVE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"objective {part.strip()!r} is not like ttft_p99=1s or tpot=5ms")
        measure, statistic, number, unit = match.groups()
        limit_s = float(number) * (1e-3 if unit == "ms" else 1.0)
        found.append(Objective(measure, statistic or "mean", limit_s))
    return tuple(found)


@dataclass(frozen=True)
class Prices:
    """In one currency: what a card costs, what a million tokens bring."""

    card_hour: float
    input: float = 0.0
    cached_input: float = 0.0
    output: float = 0.0


@dataclass(frozen=True)
class Plan:
    """The fleet, what it showed, and why it is this one."""

    num_prefill: int
    num_decode: int
    is_met: bool
    values: dict[str, Any]
    reasons: list[str]
    """What each fleet that was tried showed, in the order of trying."""
    why: str
    """Why no smaller fleet, or why none."""


def plan_fleet(
    trace: Trace,
    options: ReplayOptions,
    objectives: tuple[Objective, ...],
    max_instances: int,
    say: Callable[[str], None] = lambda _line: None,
) -> Plan:
    """Fewest prefill groups that meet the objectives beside plenty of decode, then the fewest
    decode instances beside those.

    Waits are taken to shrink as instances are added. When max_instances of both do not do, the plan
    is that fleet, with is_met False and the reason.
    Raises: ValueError when no request of the trace falls into the replay.
    """
    search = _Search(trace, options, objectives, say)
    if not search.meets(max_instances, max_instances):
        return search.plan(max_instances, max_instances, is_met=False)
    num_prefill = _fewest(lambda num: search.meets(num, max_instances), max_instances)
    num_decode = _fewest(lambda num: search.meets(num_prefill, num), max_instances)
    return search.plan(num_prefill, num_decode, is_met=True)


def _fewest(is_enough: Callable[[int], bool], known_enough: int) -> int:
    """By doubling, then halving the gap."""
    low, high = 0, 1
    while high < known_enough and not is_enough(high):
        low, high = high, 2 * high
    high = min(high, known_enough)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


class _Search:
    def __init__(
        self,
        trace: Trace,
        options: ReplayOptions,
        objectives: tuple[Objective, ...],
        say: Callable[[str], None],
    ) -> None:
        self._trace, self._options, self._objectives, self._say = trace, options, objectives, say
        self._known: dict[tuple[int, int], dict[str, Any]] = {}
        self._reasons: list[str] = []

    def meets(self, num_prefill: int, num_decode: int) -> bool:
        values = self._values(num_prefill, num_decode)
        return all(o.value_s(values) <= o.limit_s for o in self._objectives)

    def _values(self, num_prefill: int, num_decode: int) -> dict[str, Any]:
        key = num_prefill, num_decode
        if key not in self._known:
            options = replace(self._options, num_prefill=num_prefill, num_decode=num_decode)
            self._known[key] = summary(Replay(self._trace, options).run(), options, "")
            self._reasons.append(self._reason(*key))
            self._say(self._reasons[-1])
        return self._known[key]

    def _reason(self, num_prefill: int, num_decode: int) -> str:
        values = self._known[num_prefill, num_decode]
        shown = [
            f"{o} {'met' if o.value_s(values) <= o.limit_s else 'MISSED'} ({o.value_s(values):.4g})"
            for o in self._objectives
        ]
        return f"{num_prefill} prefill, {num_decode} decode: {', '.join(shown)}"

    def plan(self, num_prefill: int, num_decode: int, *, is_met: bool) -> Plan:
        values = self._values(num_prefill, num_decode)
        why = self._why(num_prefill, num_decode, is_met)
        if values["num_refused"]:
            why += f"; left out, as they fit no decode instance: {values['num_refused']} requests"
        return Plan(num_prefill, num_decode, is_met, values, self._reasons, why)

    def _why(self, num_prefill: int, num_decode: int, is_met: bool) -> str:
        fleet = f"{num_prefill} prefill and {num_decode} decode instances"
        if not is_met:
            return f"{fleet}, as many as are allowed, miss {self._missed(num_prefill, num_decode)}"
        most = max(num for _, num in self._known)
        fewer = []
        if num_prefill > 1:
            missed = self._missed(num_prefill - 1, most)
            fewer.append(f"one prefill instance fewer would miss {missed}")
        if num_decode > 1:
            missed = self._missed(num_prefill, num_decode - 1)
            fewer.append(f"one decode instance fewer would miss {missed}")
        return f"{fleet} meet every objective; {'; '.join(fewer) or 'there is no smaller fleet'}"

    def _missed(self, num_prefill: int, num_decode: int) -> str:
        values = self._values(num_prefill, num_decode)
        missed = [o for o in self._objectives if o.value_s(values) > o.limit_s]
        return ", ".join(f"{o} ({o.value_s(values):.4g} s)" for o in missed)


def money(values: Mapping[str, Any], prices: Prices) -> dict[str, float]:
    """Cost and revenue of a replay, by its summary: an hour, and a card-hour."""
    cards = values["cards"]
    inputs_m = values["input_tokens_per_s"] * 3600 / 1e6
    cached_m = inputs_m * values["cached_share"]
    revenue = (
        (inputs_m - cached_m) * prices.input
        + cached_m * prices.cached_input
        + values["output_tokens_per_s"] * 3600 / 1e6 * prices.output
    )
    tokens_per_s = values["input_tokens_per_s"] + values["output_tokens_per_s"]
    return {
        "cards": cards,
        "cost_per_hour": cards * prices.card_hour,
        "revenue_per_hour": revenue,
        "revenue_per_card_hour": revenue / cards,
        "profit_per_card_hour": revenue / cards - prices.card_hour,
        "tokens_per_s_per_card": tokens_per_s / cards,
    }
