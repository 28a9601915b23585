"""Demand on each service, in units of what one of its instances can do."""

from collections.abc import Mapping
from dataclasses import dataclass, field

_SOME_LOAD = 1e-3
"""Load that wants an instance and nothing more: what brings a service back from zero."""


@dataclass(frozen=True, slots=True)
class InstanceCounts:
    """Instances of one service. Draining ones are in neither number."""

    num_running: int = 0
    pending_deadlines_s: tuple[float, ...] = ()
    """When each started but not yet reporting instance stops counting as capacity."""

    def num_pending(self, now_s: float) -> int:
        return sum(1 for deadline_s in self.pending_deadlines_s if deadline_s > now_s)


@dataclass(frozen=True, slots=True)
class FlowDemand:
    """Work that arrives, waits and is done. Arrivals count, never completions: what can't be done
    in time would otherwise look like little demand."""

    counts: InstanceCounts = field(default_factory=InstanceCounts)
    arriving_per_s: float = 0.0
    backlog: float = 0.0
    """Asked for and not yet done."""
    capacity_per_s: float = 0.0
    """Of one instance; 0 = not known."""


@dataclass(frozen=True, slots=True)
class HoldDemand:
    """Requests that hold a place and memory for as long as they last."""

    counts: InstanceCounts = field(default_factory=InstanceCounts)
    num_held: int = 0
    """Those that generate, and those that will after their prefill."""
    slots: int = 0
    """Requests that one instance runs at once, 0 = not known."""
    used_pages: int = 0
    pages: int = 0
    """Of one instance, 0 = not known."""


@dataclass(frozen=True, slots=True)
class FleetDemand:
    """Arrivals, work in hand and capacity, as measured over the last window."""

    now_s: float
    prefill: FlowDemand = field(default_factory=FlowDemand)
    """In prompt tokens that no cache covered."""
    decode: HoldDemand = field(default_factory=HoldDemand)
    vision: FlowDemand | None = None
    """In patches; None: nobody said anything of images."""
    recipe: FlowDemand | None = None
    """In tokens of prompts and answers; None: it is not looked at."""

    def counts(self, service: str) -> InstanceCounts:
        """Instances of a service that demand is known of."""
        of_service: FlowDemand | HoldDemand = getattr(self, service)
        return of_service.counts


@dataclass(frozen=True, slots=True)
class Load:
    """Demand in units of one instance's full capacity."""

    instances: float
    reason: str


def estimate_loads(
    demand: FleetDemand, backlog_clear_s: float, assumed_per_s: Mapping[str, float]
) -> dict[str, Load]:
    """Fully busy instances that each service's demand amounts to."""
    flows = {
        "prefill": (demand.prefill, "tokens"),
        "vision": (demand.vision, "patches"),
        "recipe": (demand.recipe, "tokens"),
    }
    loads = {
        service: flow_load(flow, unit, backlog_clear_s, assumed_per_s.get(service, 0.0))
        for service, (flow, unit) in flows.items()
        if flow is not None
    }
    loads["decode"] = hold_load(demand.decode, is_coming=demand.prefill.arriving_per_s > 0)
    return loads


def flow_load(demand: FlowDemand, unit: str, backlog_clear_s: float, assumed_per_s: float) -> Load:
    """What arrives, and what waits spread over backlog_clear_s, against an instance's capacity."""
    is_known = demand.capacity_per_s > 0
    capacity = demand.capacity_per_s if is_known else assumed_per_s
    wanted = demand.arriving_per_s + demand.backlog / backlog_clear_s
    if capacity <= 0:
        load = _SOME_LOAD if wanted > 0 else 0.0
        return Load(load, f"{wanted:.0f} {unit}/s wanted, capacity not known")
    source = "" if is_known else " assumed"
    reason = f"{wanted:.0f} {unit}/s wanted, {capacity:.0f}{source} an instance"
    return Load(wanted / capacity, reason)


def hold_load(demand: HoldDemand, *, is_coming: bool) -> Load:
    """Full instances that the requests in flight amount to, by places or by pages."""
    by_slots = demand.num_held / demand.slots if demand.slots else 0.0
    by_pages = demand.used_pages / demand.pages if demand.pages else 0.0
    if by_pages > by_slots:
        return Load(by_pages, f"{demand.used_pages} pages used, {demand.pages} an instance")
    if by_slots == 0 and is_coming:
        return Load(_SOME_LOAD, "prompts arrive, none in flight yet")
    return Load(by_slots, f"{demand.num_held} in flight, {demand.slots} an instance")


def slots_within(step_s: float, base_s: float, per_request_s: float, request_kv_s: float) -> int:
    """Requests that a decode step of step_s takes; request_kv_s: for the KV of a mean one.

    At least one: an instance that is too slow for the goal alone is used all the same.
    """
    per_slot_s = per_request_s + request_kv_s
    if per_slot_s <= 0:
        raise ValueError(f"need a time per request > 0; got {per_request_s} + {request_kv_s}")
    return max(1, int((step_s - base_s) / per_slot_s))
