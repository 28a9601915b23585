"""What the scaler of a replayed fleet sees, and whom it takes away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from rorqual_policy.drain_choice import DrainCandidate, choose_drained
from rorqual_policy.scaling import ScalingParams, ServiceBounds
from rorqual_policy.scaling_load import FleetDemand, FlowDemand, HoldDemand, InstanceCounts

from rorqual_sim.replay.decode import DecodeFleet, Instance
from rorqual_sim.replay.options import ReplayOptions, Role
from rorqual_sim.replay.prefill import Group, PrefillFleet

SCALE_EVERY_S = 1.0
_DEMAND_WINDOW_S = 30.0


def scaling_params(options: ReplayOptions) -> ScalingParams:
    """The given patience within this fleet's bounds."""
    bounds = {
        "prefill": ServiceBounds(1, max(options.max_prefill, options.num_prefill)),
        "decode": ServiceBounds(1, max(options.max_decode, options.num_decode)),
    }
    return replace(options.scaling, services=bounds)


def missed_per_s(missed: deque[tuple[float, int]], now_s: float) -> float:
    """Tokens a second over the last while. missed: (time, tokens); what is older is dropped."""
    while missed and missed[0][0] < now_s - _DEMAND_WINDOW_S:
        missed.popleft()
    return sum(tokens for _, tokens in missed) / _DEMAND_WINDOW_S


def fleet_demand(
    now_s: float,
    options: ReplayOptions,
    prefill: PrefillFleet,
    decode: DecodeFleet,
    counts: Callable[[Role], InstanceCounts],
    *,
    arriving_per_s: float,
    num_unplaced: int,
) -> FleetDemand:
    """num_unplaced: requests whose prefill is done and that no decode instance has room for."""
    per_rank = (1 - options.cost.a0_s / prefill.policy.budget.max_s) / options.cost.a1_s
    num_running = sum(len(instance.running) for instance in decode.instances)
    return FleetDemand(
        now_s=now_s,
        prefill=FlowDemand(
            counts=counts(Role.PREFILL),
            arriving_per_s=arriving_per_s,
            backlog=int(sum(prefill.queued_s) / options.cost.a1_s),
            capacity_per_s=per_rank * options.ranks_per_group,
        ),
        decode=HoldDemand(
            counts=counts(Role.DECODE),
            num_held=num_running + num_unplaced,
            slots=options.max_running,
        ),
    )


def to_drain(members: Sequence[Group | Instance], num: int) -> list[Group | Instance]:
    """Of those at work the ones with the least of it; one stays, whatever is on its way up."""
    at_work = {str(m.number): m for m in members if m.is_up and not m.is_draining}
    candidates = [_candidate(member) for member in at_work.values()]
    chosen = choose_drained(candidates, min(num, len(at_work) - 1)).instance_ids
    return [at_work[instance_id] for instance_id in chosen]


def _candidate(member: Group | Instance) -> DrainCandidate:
    if isinstance(member, Group):
        num_held = sum(len(member.held(rank)) for rank in range(member.num_ranks))
        return DrainCandidate(str(member.number), num_requests=num_held)
    num_running = len(member.running)
    return DrainCandidate(str(member.number), num_requests=num_running, kv_tokens=member.kv_tokens)
