"""How many prefill and decode instances the present demand needs."""

import math
from dataclasses import dataclass, field, replace

_SOME_LOAD = 1e-3
"""Load that wants an instance and nothing more: what brings a service back from zero."""


@dataclass(frozen=True, slots=True)
class ServiceBounds:
    """Least and most instances of one service."""

    min_instances: int = 1
    max_instances: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.min_instances <= self.max_instances:
            raise ValueError(f"need 0 <= min <= max instances; got {self}")


@dataclass(frozen=True, slots=True)
class ScalingParams:
    """Bounds and the patience with which counts change."""

    prefill: ServiceBounds = field(default_factory=ServiceBounds)
    decode: ServiceBounds = field(default_factory=ServiceBounds)
    up_utilisation: float = 0.8
    """Share of an instance's capacity that demand may use before one more is wanted."""
    down_utilisation: float = 0.6
    """One fewer is wanted only if demand then uses no more than this share."""
    up_after_s: float = 3.0
    """Demand must stay above for so long before instances are added."""
    down_after_s: float = 60.0
    """Demand must stay below for so long before an instance is taken away."""
    missing_after_s: float = 60.0
    """Fewer instances than the minimum are replaced after so long: a launcher may be at it."""
    backlog_clear_s: float = 20.0
    """Work that waits already should be done within this time."""
    default_prefill_tokens_per_s: float = 1000.0
    """Capacity of a prefill instance until one has been measured."""

    def __post_init__(self) -> None:
        if not 0 < self.down_utilisation <= self.up_utilisation <= 1:
            raise ValueError(f"need 0 < down_utilisation <= up_utilisation <= 1; got {self}")
        if self.backlog_clear_s <= 0 or self.default_prefill_tokens_per_s <= 0:
            raise ValueError(f"need backlog_clear_s, default_prefill_tokens_per_s > 0; got {self}")


@dataclass(frozen=True, slots=True)
class InstanceCounts:
    """Instances of one service. Draining ones are in neither number."""

    num_running: int
    pending_deadlines_s: tuple[float, ...] = ()
    """When each started but not yet reporting instance stops counting as capacity."""

    def num_pending(self, now_s: float) -> int:
        return sum(1 for deadline_s in self.pending_deadlines_s if deadline_s > now_s)


@dataclass(frozen=True, slots=True)
class FleetDemand:
    """Arrivals, work in hand and capacity, as measured over the last window."""

    now_s: float
    prefill: InstanceCounts
    decode: InstanceCounts
    missed_tokens_per_s: float
    """Prompt tokens a second that no cache covered: arrivals, never completions."""
    backlog_tokens: int = 0
    """Tokens submitted and not yet computed."""
    prefill_tokens_per_s: float = 0.0
    """Capacity of one prefill instance, 0 = not measured."""
    num_decode_in_flight: int = 0
    """Requests generating, and those whose prefill is under way."""
    decode_slots: int = 0
    """Requests that one decode instance runs at once, 0 = not known."""
    decode_used_pages: int = 0
    decode_pages: int = 0
    """Pages of one decode instance, 0 = not known."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Since when a service has had too few, too many, or fewer instances than its minimum."""

    up_since_s: float | None = None
    down_since_s: float | None = None
    missing_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingState:
    """Carried from one decision to the next."""

    prefill: Patience = field(default_factory=Patience)
    decode: Patience = field(default_factory=Patience)


@dataclass(frozen=True, slots=True)
class Target:
    """Wanted count of one service, what to do about it now, and why."""

    num_running: int
    num_pending: int
    num_desired: int
    """Always within the bounds, except on the way down to them."""
    num_change: int
    """Instances to start now, negative to stop; 0 while waiting to be sure."""
    reason: str


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Wanted counts of both services."""

    prefill: Target
    decode: Target


def desired_counts(
    state: ScalingState, demand: FleetDemand, params: ScalingParams
) -> tuple[ScalingState, ScalingDecision]:
    """Counts that carry the demand, changed only after it has lasted, always within the bounds.

    Up goes to the needed count at once; down goes one at a time, and only if one fewer would carry
    the load with room to spare. Zero traffic is data: it means zero load.
    """
    prefill_patience, prefill = _decide(
        state.prefill, demand.prefill, estimate_prefill_load(demand, params), params.prefill,
        params, demand.now_s,
    )  # fmt: skip
    decode_patience, decode = _decide(
        state.decode, demand.decode, estimate_decode_load(demand), params.decode,
        params, demand.now_s,
    )  # fmt: skip
    return ScalingState(prefill_patience, decode_patience), ScalingDecision(prefill, decode)


@dataclass(frozen=True, slots=True)
class Load:
    """Demand in units of one instance's full capacity."""

    instances: float
    reason: str


def estimate_prefill_load(demand: FleetDemand, params: ScalingParams) -> Load:
    """Fully busy prefill instances that arrivals and backlog amount to."""
    measured = demand.prefill_tokens_per_s > 0
    capacity = demand.prefill_tokens_per_s if measured else params.default_prefill_tokens_per_s
    wanted = demand.missed_tokens_per_s + demand.backlog_tokens / params.backlog_clear_s
    source = "measured" if measured else "assumed"
    reason = f"{wanted:.0f} tokens/s wanted, {capacity:.0f} {source} an instance"
    return Load(wanted / capacity, reason)


def estimate_decode_load(demand: FleetDemand) -> Load:
    """Full decode instances that the requests in flight amount to, by slots or by pages."""
    by_slots = demand.num_decode_in_flight / demand.decode_slots if demand.decode_slots else 0.0
    by_pages = demand.decode_used_pages / demand.decode_pages if demand.decode_pages else 0.0
    if by_pages > by_slots:
        return Load(by_pages, f"{demand.decode_used_pages} pages of {demand.decode_pages} used")
    if by_slots == 0 and demand.missed_tokens_per_s > 0:
        return Load(_SOME_LOAD, "prompts arrive, none in flight yet")
    reason = f"{demand.num_decode_in_flight} in flight, {demand.decode_slots} slots an instance"
    return Load(by_slots, reason)


def _decide(
    patience: Patience,
    counts: InstanceCounts,
    load: Load,
    bounds: ServiceBounds,
    params: ScalingParams,
    now_s: float,
) -> tuple[Patience, Target]:
    num_now = counts.num_running + counts.num_pending(now_s)
    needed = _num_needed(load, bounds, params)
    too_many = num_now > bounds.max_instances or (
        num_now > bounds.min_instances and load.instances <= params.down_utilisation * (num_now - 1)
    )
    patience = Patience(
        up_since_s=_since(patience.up_since_s, needed > num_now, now_s),
        down_since_s=_since(patience.down_since_s, too_many, now_s),
        missing_since_s=_since(patience.missing_since_s, num_now < bounds.min_instances, now_s),
    )
    change, step = _change(patience, num_now, needed, load, bounds, params, now_s)
    if change < 0:
        patience = replace(patience, down_since_s=now_s)
    desired = max(num_now + change, bounds.min_instances)
    num_pending = num_now - counts.num_running
    return patience, Target(
        counts.num_running, num_pending, desired, change, f"{load.reason}: {step}"
    )


def _change(
    patience: Patience,
    num_now: int,
    needed: int,
    load: Load,
    bounds: ServiceBounds,
    params: ScalingParams,
    now_s: float,
) -> tuple[int, str]:
    """Instances to add (or, negative, to remove) now, given what has lasted long enough."""
    if num_now < bounds.min_instances:
        # Below the minimum, load is no reason to hurry: whoever starts the baseline is at it.
        if _lasted(patience.missing_since_s, params.missing_after_s, now_s):
            return needed - num_now, f"{num_now} of at least {bounds.min_instances} up for long"
        return 0, f"{num_now} of at least {bounds.min_instances} up, waiting for them"
    if needed > num_now:
        if _lasted(patience.up_since_s, params.up_after_s, now_s):
            return needed - num_now, f"load of {load.instances:.2f} instances needs {needed}"
        return 0, f"load of {load.instances:.2f} instances, waiting before adding"
    if patience.down_since_s is not None:
        if _lasted(patience.down_since_s, params.down_after_s, now_s):
            return -1, f"{num_now - 1} would carry a load of {load.instances:.2f} instances"
        return 0, f"load of {load.instances:.2f} instances, waiting before removing"
    return 0, f"load of {load.instances:.2f} instances fits {num_now}"


def _since(since_s: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if since_s is None else since_s


def _lasted(since_s: float | None, wait_s: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s >= wait_s


def _num_needed(load: Load, bounds: ServiceBounds, params: ScalingParams) -> int:
    """Instances that carry the load with the wanted reserve, within the bounds."""
    wanted = min(load.instances / params.up_utilisation, bounds.max_instances)
    return max(math.ceil(wanted - 1e-6), bounds.min_instances)
