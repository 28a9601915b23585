"""A day: traffic in, an autoscaler over it, attainment and card-hours out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray
from rorqual_policy.placement import estimate_step_s
from rorqual_policy.scaling_load import InstanceCounts

from rorqual_sim.day.autoscalers import Autoscaler, Fixed, Seen
from rorqual_sim.day.fleet import DayFleet, DayState
from rorqual_sim.day.instances import Instances
from rorqual_sim.day.mix import Mix

_WINDOW_S = 10
_BUSY_WINDOW_S = 60


@dataclass(frozen=True)
class DayResult:
    """What a day came to."""

    attainment: float
    """Share of the requests that met every objective."""
    card_hours: float
    most_cards: int
    num_requests: float
    num_changes: int
    num_reversals: int
    """Changes of direction, both services together."""


@dataclass(frozen=True)
class Size:
    """Instances of each service."""

    num_prefill: int
    num_decode: int

    def cards(self, fleet: DayFleet) -> int:
        return self.num_prefill * fleet.ranks_per_group + self.num_decode


def busy_size(fleet: DayFleet, mix: Mix, per_s: float, share: float = 1.0) -> Size:
    """Instances whose capacity a load of per_s requests a second uses to that share."""
    ranks = per_s * mix.mean_work_s / fleet.tokens_efficiency / share
    held = _held(fleet, mix, per_s) / share
    num_prefill, num_decode = ranks / fleet.ranks_per_group, held / fleet.max_running
    return Size(max(1, ceil(num_prefill)), max(1, ceil(num_decode)))


def _held(fleet: DayFleet, mix: Mix, per_s: float) -> float:
    """Requests that run at once, on full decode instances."""
    full_kv = int(fleet.max_running * mix.kv_tokens)
    step_s = estimate_step_s(fleet.max_running, full_kv, fleet.decode)
    return per_s * mix.output_tokens * step_s


def simulate_day(
    fleet: DayFleet,
    mix: Mix,
    nums: NDArray[np.int64],
    autoscaler: Autoscaler,
    begin: Size,
    *,
    seed: int = 0,
) -> DayResult:
    """Run all seconds of nums ([seconds, classes] arrivals), beginning with that fleet."""
    state = DayState(fleet, mix, begin.num_prefill, begin.num_decode, seed)
    state.num_running = _held(fleet, mix, float(nums[:_BUSY_WINDOW_S].sum(axis=1).mean()))
    arriving: deque[float] = deque([0.0] * _WINDOW_S, _WINDOW_S)
    busy: deque[float] = deque([0.0] * _BUSY_WINDOW_S, _BUSY_WINDOW_S)
    tokens = np.array(mix.missed_tokens)
    most_cards = 0
    for second, row in enumerate(nums.tolist()):
        state.second(float(second), row)
        arriving.append(float(np.dot(tokens, row)))
        busy.append(min(1.0, state.prefill_busy))
        if second % autoscaler.interval_s == 0 and second >= _WINDOW_S:
            _scale(state, autoscaler, _seen(state, fleet, mix, second, arriving, busy))
        most_cards = max(most_cards, _cards(state))
    instances = (state.prefill, state.decode)
    return DayResult(
        attainment=state.num_good / max(1.0, state.num_asked),
        card_hours=sum(i.card_s for i in instances) / 3600,
        most_cards=most_cards,
        num_requests=state.num_asked,
        num_changes=sum(i.num_changes for i in instances),
        num_reversals=sum(i.num_reversals for i in instances),
    )


def smallest_fixed(
    attains: Callable[[Size], float], goal: float, sizes: list[Size]
) -> tuple[Size, float] | None:
    """The first of the sizes, ascending, that attains the goal, and what it attains."""
    low, high = 0, len(sizes)
    found: dict[int, float] = {}
    while low < high:
        middle = (low + high) // 2
        found[middle] = attains(sizes[middle])
        if found[middle] >= goal:
            high = middle
        else:
            low = middle + 1
    if low == len(sizes):
        return None
    return sizes[low], found[low]


def fixed_day(
    fleet: DayFleet, mix: Mix, nums: NDArray[np.int64], size: Size, seed: int = 0
) -> DayResult:
    """The same day on a fleet that stays as it is."""
    return simulate_day(fleet, mix, nums, Fixed(), size, seed=seed)


def _scale(state: DayState, autoscaler: Autoscaler, seen: Seen) -> None:
    kept = (state.prefill.num_kept, state.decode.num_kept)
    num_prefill, num_decode = autoscaler.counts(seen, kept)
    state.prefill.keep(num_prefill, seen.now_s)
    state.decode.keep(num_decode, seen.now_s)


def _seen(
    state: DayState,
    fleet: DayFleet,
    mix: Mix,
    second: int,
    arriving: deque[float],
    busy: deque[float],
) -> Seen:
    per_rank_s = fleet.tokens_efficiency * mix.mean_missed_tokens / mix.mean_work_s
    held = state.num_running + state.num_unplaced
    places = state.decode.num_ready * fleet.max_running
    return Seen(
        now_s=float(second),
        prefill=_counts(state.prefill),
        decode=_counts(state.decode),
        arriving_tokens_per_s=sum(arriving) / _WINDOW_S,
        backlog_tokens=state.queue.waiting_s * mix.mean_missed_tokens / mix.mean_work_s,
        tokens_per_s=per_rank_s * fleet.ranks_per_group,
        num_held=held,
        slots=fleet.max_running,
        prefill_busy=sum(busy) / _BUSY_WINDOW_S,
        decode_busy=min(1.0, held / places) if places else 1.0,
    )


def _counts(instances: Instances) -> InstanceCounts:
    return InstanceCounts(instances.num_ready, tuple(at_s + 1.0 for at_s in instances.ready_at_s))


def _cards(state: DayState) -> int:
    return sum(i.num_kept * i.cards for i in (state.prefill, state.decode))
