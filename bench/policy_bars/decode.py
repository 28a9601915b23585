"""Bar 14: even steps over the ranks of a decode group."""

from __future__ import annotations

from collections.abc import Iterator

from rorqual_policy.placement import PlacementParams
from rorqual_sim.decode_routing import (
    KV_ONLY,
    REQUESTS_ONLY,
    DecodeRule,
    estimated_step,
    simulate_decode,
)

from bench.policy_bars.load import Load
from bench.policy_bars.registry import Figure, bar, most

_GOALS = {
    ("conversation", 32): 1.035,
    ("conversation", 96): 1.015,
    ("agentic", 32): 1.07,
    ("agentic", 96): 1.025,
}


@bar(14)
def decode_routing(load: Load) -> Iterator[Figure]:
    params = PlacementParams()
    for batch in (32, 96):
        ours, requests, kv = (
            _excess(load, rule, params, batch)
            for rule in (estimated_step(params), REQUESTS_ONLY, KV_ONLY)
        )
        goal = _GOALS.get((load.kind, batch))
        yield Figure(f"decode_step_max_over_mean_{batch}", 1 + ours, "x", goal, is_upper=True)
        yield most(f"decode_excess_over_requests_only_{batch}", ours / requests, "x", 1 / 3)
        if load.kind == "agentic":
            yield most(f"decode_excess_over_kv_only_{batch}", ours / kv, "x", 0.6)


def _excess(load: Load, rule: DecodeRule, params: PlacementParams, batch: int) -> float:
    balance = simulate_decode(
        load.trace.input_tokens,
        load.trace.output_tokens,
        rule=rule,
        params=params,
        num_ranks=64,
        batch_per_rank=batch,
        duration_s=240.0,
        seed=load.seed,
    )
    return balance.variable - 1
