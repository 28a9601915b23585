"""`make bench-scaling`: a simulated day of 1,000 cards: attainment and card-hours of the scaler's
policy beside a fixed fleet of the same attainment and a utilisation threshold.

First the day's model is held against the replay, which knows every request, on a small fleet.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rorqual_policy.scaling import ScalingParams, ServiceBounds
from rorqual_sim.day.autoscalers import ByDemand, ByUtilisation, ThresholdParams
from rorqual_sim.day.fleet import DayFleet
from rorqual_sim.day.mix import Mix, conversations, mix_of
from rorqual_sim.day.run import DayResult, Size, busy_size, fixed_day, simulate_day, smallest_fixed
from rorqual_sim.day.traffic import Traffic, arrivals, rates_per_s
from rorqual_sim.replay.fleet import Replay
from rorqual_sim.replay.options import ReplayOptions
from rorqual_sim.traces import Trace, read_trace
from rorqual_sim.workloads import price

from bench.report import at_most, emit

CARDS = 1000
PEAK_SHARE = 0.68
"""Of the cards, busy at the peak of the daily curve, bursts not counted."""
TARGETS = (0.5, 0.6, 0.7, 0.8)
MIN_ATTAINMENT, MAX_COST_RATIO = 0.99, 0.8
MAX_MODEL_ERROR = 0.02
REVERSALS_PER_HOUR = 12
"""One in five minutes."""


def main() -> int:
    """Measure; 1 when a goal was missed."""
    options = _options()
    fleet = DayFleet()
    met = True
    if not options.skip_validation:
        met &= validate(fleet, options.seed)
    mix = conversations(fleet.cost)
    if options.trace:
        mix = mix_of(price(read_trace(options.trace), fleet.cost))
    return 0 if met & measure_day(fleet, mix, options.hours, options.seed) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--trace", type=Path, help="whose lengths and prefixes; else an assumed mix"
    )
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip-validation", action="store_true")
    return parser.parse_args()


def measure_day(fleet: DayFleet, mix: Mix, hours: float, seed: int) -> bool:
    """The day three times over; whether every goal was met."""
    per_s = 1000.0
    peak_per_s = CARDS * PEAK_SHARE / busy_size(fleet, mix, per_s).cards(fleet) * per_s
    rates = rates_per_s(Traffic(peak_per_s), int(hours * 3600), seed)
    nums = arrivals(rates, mix.num_classes, seed)
    begin = busy_size(fleet, mix, float(rates[0]), 0.7)
    most = busy_size(fleet, mix, peak_per_s, PEAK_SHARE)
    ours = simulate_day(fleet, mix, nums, _by_demand(most), begin, seed=seed)
    met = _tell_ours(ours, hours)
    met &= _tell_fixed(fleet, mix, nums, ours, peak_per_s, seed)
    _tell_threshold(fleet, mix, nums, ours, begin, most, seed)
    return met


def _by_demand(most: Size) -> ByDemand:
    bounds = {
        "prefill": ServiceBounds(2, most.num_prefill),
        "decode": ServiceBounds(2, most.num_decode),
    }
    return ByDemand(ScalingParams(services=bounds))


def _tell_ours(ours: DayResult, hours: float) -> bool:
    facts = {"requests": int(ours.num_requests), "most_cards": ours.most_cards}
    met = emit("day_attainment", ours.attainment, "share", goal=MIN_ATTAINMENT, **facts)
    emit("day_card_hours", ours.card_hours, "card-hours", changes=ours.num_changes)
    reversals = ours.num_reversals / 2 / hours
    goal = float(REVERSALS_PER_HOUR)
    met &= emit("day_reversals", reversals, "an hour and service", goal=goal, passes=at_most)
    return met


def _tell_fixed(
    fleet: DayFleet,
    mix: Mix,
    nums: NDArray[np.int64],
    ours: DayResult,
    peak_per_s: float,
    seed: int,
) -> bool:
    """The smallest fleet that stays as it is and serves as many as well."""
    sizes = [busy_size(fleet, mix, peak_per_s * (0.7 + 0.01 * step)) for step in range(100)]
    found = smallest_fixed(
        lambda size: fixed_day(fleet, mix, nums, size, seed).attainment, ours.attainment, sizes
    )
    if found is None:
        print("no fixed fleet of up to 1.7 times the peak attains it", file=sys.stderr)
        return False
    size, attained = found
    card_hours = size.cards(fleet) * len(nums) / 3600
    facts = {"fixed_cards": size.cards(fleet), "fixed_attainment": round(attained, 5)}
    ratio = ours.card_hours / card_hours
    return emit("day_cost_of_fixed", ratio, "ratio", goal=MAX_COST_RATIO, passes=at_most, **facts)


def _tell_threshold(
    fleet: DayFleet,
    mix: Mix,
    nums: NDArray[np.int64],
    ours: DayResult,
    begin: Size,
    most: Size,
    seed: int,
) -> None:
    """The same day at several targets; no goal: it is what we are compared with."""
    for target in TARGETS:
        scaler = ByUtilisation(ThresholdParams(target), (2, 2), (most.num_prefill, most.num_decode))
        day = simulate_day(fleet, mix, nums, scaler, begin, seed=seed)
        emit(
            f"day_threshold_{target:g}_attainment",
            day.attainment,
            "share",
            cost_of_ours=round(day.card_hours / ours.card_hours, 4),
            reversals=day.num_reversals,
        )


def validate(fleet: DayFleet, seed: int) -> bool:
    """One overload on a small fleet, by streams and by single requests."""
    small = replace(fleet, ranks_per_group=2, failures_per_hour=0.0)
    mix, size, num_s = conversations(fleet.cost, 16), Size(12, 8), 150
    capacity = size.num_prefill * 2 * small.tokens_efficiency / mix.mean_work_s
    rates = np.full(num_s, 0.85 * capacity)
    rates[40:80] = 1.3 * capacity
    nums = arrivals(rates, mix.num_classes, seed)
    streams = fixed_day(small, mix, nums, size, seed)
    single = _replayed_attainment(small, mix, nums, size, seed)
    error = abs(streams.attainment - single)
    facts = {"streams": round(streams.attainment, 4), "replay": round(single, 4)}
    return emit("day_model_error", error, "share", goal=MAX_MODEL_ERROR, passes=at_most, **facts)


def _replayed_attainment(
    fleet: DayFleet, mix: Mix, nums: NDArray[np.int64], size: Size, seed: int
) -> float:
    options = ReplayOptions(
        num_prefill=size.num_prefill,
        num_decode=size.num_decode,
        ranks_per_group=fleet.ranks_per_group,
        max_running=fleet.max_running,
    )
    result = Replay(_as_trace(mix, nums, seed), options).run()
    goals = fleet.objectives
    good = 0
    for request in result.requests:
        alone_s = fleet.cost.a0_s + request.estimate_s
        limit_s = max(goals.ttft_s, goals.ttft_ratio * alone_s)
        is_soon = request.first_token_s - request.arrival_s <= limit_s
        good += is_soon and request.tpot_s <= goals.tpot_s
    return good / max(1, len(result.requests))


def _as_trace(mix: Mix, nums: NDArray[np.int64], seed: int) -> Trace:
    """Single requests of the same classes, anywhere in their second."""
    rng = np.random.Generator(np.random.PCG64(seed))
    second, place = np.nonzero(nums)
    counts = nums[second, place]
    arrival_s = np.repeat(second, counts) + rng.uniform(0.0, 1.0, counts.sum())
    order = np.argsort(arrival_s)
    num = len(order)
    tokens = np.array(mix.missed_tokens, np.int64)[np.repeat(place, counts)][order]
    nothing = np.zeros(num, np.int64)
    return Trace(
        name="streams",
        arrival_s=arrival_s[order],
        input_tokens=tokens,
        output_tokens=np.full(num, int(mix.output_tokens), np.int64),
        session=np.full(num, -1, np.int64),
        block_tokens=512,
        block_start=np.zeros(num + 1, np.int64),
        block_ids=np.empty(0, np.int32),
        warm_tokens=nothing,
        service_s=np.zeros(num),
        tenant=nothing,
    )


if __name__ == "__main__":
    sys.exit(main())
