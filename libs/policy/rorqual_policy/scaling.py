"""How many instances of each service the present demand needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rorqual_policy.scaling_load import FleetDemand, InstanceCounts, Load, estimate_loads


@dataclass(frozen=True, slots=True)
class ServiceBounds:
    """Least and most instances of one service, and what it has beyond its load."""

    min_instances: int = 1
    max_instances: int = 1
    num_spare: int = 0
    """Held ready above what the load needs, for load that comes sooner than an instance starts."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_instances <= self.max_instances or self.num_spare < 0:
            raise ValueError(f"need 0 <= min <= max instances, spare >= 0; got {self}")

    def clamp(self, num: int) -> int:
        """The nearest number within the bounds."""
        return min(max(num, self.min_instances), self.max_instances)


@dataclass(frozen=True, slots=True)
class ScalingParams:
    """Bounds by service, and the patience with which counts change."""

    services: Mapping[str, ServiceBounds] = field(default_factory=dict)
    """A service that is not named has the bounds of `ServiceBounds()`: one instance."""
    up_utilisation: float = 0.85
    """Share of an instance's capacity that demand may use before one more is wanted."""
    down_utilisation: float = 0.75
    """Fewer are wanted only if demand, put on them alone, uses no more than this share."""
    redundancy: float = 0.0
    """Share of the needed instances that run on top, rounded up: so many may be lost at once."""
    up_after_s: float = 3.0
    """Demand must stay above for so long before instances are added."""
    down_after_s: float = 300.0
    """Instances are taken away only if the highest demand of so long would have done without."""
    down_pause_s: float = 30.0
    """Between one taking away and the next."""
    down_share: float = 0.1
    """Share of the instances that is taken away at once, one at least."""
    missing_after_s: float = 60.0
    """Fewer instances than the minimum are replaced after so long: a launcher may be at it."""
    start_s: float = 0.0
    """And never so soon after the first decision: a whole fleet may be starting."""
    backlog_clear_s: float = 20.0
    """Work that waits already should be done within this time."""
    assumed_per_s: Mapping[str, float] = field(default_factory=lambda: {"prefill": 1000.0})
    """Capacity of an instance until it is known, in the service's own unit."""

    def __post_init__(self) -> None:
        if not 0 < self.down_utilisation <= self.up_utilisation <= 1:
            raise ValueError(f"need 0 < down_utilisation <= up_utilisation <= 1; got {self}")
        if self.backlog_clear_s <= 0 or min(self.assumed_per_s.values(), default=1.0) <= 0:
            raise ValueError(f"need backlog_clear_s, assumed_per_s > 0; got {self}")
        if self.redundancy < 0 or not 0 < self.down_share <= 1:
            raise ValueError(f"need redundancy >= 0, 0 < down_share <= 1; got {self}")

    def bounds(self, service: str) -> ServiceBounds:
        return self.services.get(service, ServiceBounds())


class Peak(NamedTuple):
    """So many instances would have done, with room, at that time."""

    at_s: float
    num: int


@dataclass(frozen=True, slots=True)
class Patience:
    """What one service has asked for lately."""

    watched_since_s: float | None = None
    up_since_s: float | None = None
    """Since when there have been too few."""
    missing_since_s: float | None = None
    """Since when there have been fewer than the minimum."""
    down_s: float | None = None
    """When some were taken away last."""
    peaks: tuple[Peak, ...] = ()
    """Oldest and highest first: the highest numbers of the last down_after_s."""


@dataclass(frozen=True, slots=True)
class ScalingState:
    """Carried from one decision to the next."""

    services: Mapping[str, Patience] = field(default_factory=dict)


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
    """Wanted counts by service."""

    targets: Mapping[str, Target]


def desired_counts(
    state: ScalingState, demand: FleetDemand, params: ScalingParams
) -> tuple[ScalingState, ScalingDecision]:
    """Counts that carry the demand, changed only after it has lasted, always within the bounds.

    Up goes to the needed count at once; down goes in steps, and only as far as the remaining ones
    would have carried everything of the last down_after_s with room to spare. Zero traffic is data:
    it means zero load.
    """
    loads = estimate_loads(demand, params.backlog_clear_s, params.assumed_per_s)
    patience: dict[str, Patience] = {}
    targets: dict[str, Target] = {}
    for service, load in loads.items():
        known = state.services.get(service, Patience())
        counts = demand.counts(service)
        patience[service], targets[service] = _decide(
            known, counts, load, params.bounds(service), params, demand.now_s
        )
    return ScalingState(patience), ScalingDecision(targets)


def _decide(
    known: Patience,
    counts: InstanceCounts,
    load: Load,
    bounds: ServiceBounds,
    params: ScalingParams,
    now_s: float,
) -> tuple[Patience, Target]:
    num_pending = counts.num_pending(now_s)
    num_now = counts.num_running + num_pending
    needed = _num_needed(load, params.up_utilisation, bounds, params.redundancy)
    roomy = _num_needed(load, params.down_utilisation, bounds, params.redundancy)
    patience = Patience(
        watched_since_s=now_s if known.watched_since_s is None else known.watched_since_s,
        up_since_s=_since(known.up_since_s, needed > num_now, now_s),
        missing_since_s=_since(known.missing_since_s, num_now < bounds.min_instances, now_s),
        down_s=known.down_s,
        peaks=_with_peak(known.peaks, Peak(now_s, roomy), now_s - params.down_after_s),
    )
    change, step = _change(patience, num_now, needed, bounds, params, now_s)
    if change < 0:
        patience = replace(patience, down_s=now_s)
    desired = max(num_now + change, bounds.min_instances)
    reason = f"{load.reason}: load of {load.instances:.2f} instances, {step}"
    return patience, Target(counts.num_running, num_pending, desired, change, reason)


def _change(
    patience: Patience,
    num_now: int,
    needed: int,
    bounds: ServiceBounds,
    params: ScalingParams,
    now_s: float,
) -> tuple[int, str]:
    """Instances to add (or, negative, to remove) now, given what has lasted long enough."""
    if num_now < bounds.min_instances:
        # Below the minimum, load is no reason to hurry: whoever starts the baseline is at it.
        is_started = _lasted(patience.watched_since_s, params.start_s, now_s)
        if is_started and _lasted(patience.missing_since_s, params.missing_after_s, now_s):
            return needed - num_now, f"{num_now} of at least {bounds.min_instances} up for long"
        return 0, f"{num_now} of at least {bounds.min_instances} up, waiting for them"
    if needed > num_now:
        if _lasted(patience.up_since_s, params.up_after_s, now_s):
            return needed - num_now, f"needs {needed}"
        return 0, f"needs {needed}, waiting before adding"
    roomiest = patience.peaks[0].num
    if roomiest >= num_now:
        return 0, f"fits {num_now}"
    is_settled = _lasted(patience.watched_since_s, params.down_after_s, now_s)
    is_paused = patience.down_s is not None and now_s - patience.down_s < params.down_pause_s
    if not is_settled or is_paused:
        return 0, f"{roomiest} would do, waiting before removing"
    step = max(1, int(params.down_share * num_now))
    return -min(num_now - roomiest, step), f"{roomiest} have carried all of it for long"


def _num_needed(load: Load, utilisation: float, bounds: ServiceBounds, redundancy: float) -> int:
    """Instances that carry the load at that utilisation, with all that is wanted on top."""
    wanted = min(load.instances / utilisation, bounds.max_instances)
    carrying = math.ceil(wanted - 1e-6)
    return bounds.clamp(carrying + math.ceil(redundancy * carrying - 1e-6) + bounds.num_spare)


def _with_peak(peaks: tuple[Peak, ...], new: Peak, oldest_s: float) -> tuple[Peak, ...]:
    """Without what is too old, or lower than what came after it."""
    return (*(p for p in peaks if p.at_s > oldest_s and p.num > new.num), new)


def _since(since_s: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if since_s is None else since_s


def _lasted(since_s: float | None, wait_s: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s >= wait_s
