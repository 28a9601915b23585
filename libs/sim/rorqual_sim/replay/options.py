"""What is replayed on what."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.placement import PlacementParams
from rorqual_policy.prefill_policy import PREFILL_POLICIES, STEP_LIMIT_S
from rorqual_policy.scaling import ScalingParams
from rorqual_policy.step_cost import STUDY_COST, StepCost, checked_cost

from rorqual_sim.replay.push import PUSH_RULES

POLICIES = (*PREFILL_POLICIES, *PUSH_RULES)
"""Ours and DeepSeek's, then comparators."""


class Role(StrEnum):
    """Kind of instance."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True)
class Failure:
    """An instance is gone at at_s; another takes its place down_s later."""

    at_s: float
    role: Role
    number: int = 0
    down_s: float = 60.0

    def __post_init__(self) -> None:
        for name, value in (("at_s", self.at_s), ("down_s", self.down_s)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"a failure's {name} is finite and >= 0, got {value}")


@dataclass(frozen=True)
class OneHost:
    """What it costs that prefill and decode compute on the same processors, and that messages
    between services take time; nothing by default."""

    prefill_slowdown: float = 1.0
    """A prefill step takes this much longer while a decode instance has work."""
    decode_slowdown: float = 1.0
    """A decode step takes this much longer while a prefill step is under way."""
    before_prefill_s: float = 0.0
    """From a request's arrival to the queue."""
    handover_s: float = 0.0
    """From the first token to the place in decode."""

    def __post_init__(self) -> None:
        times = self.before_prefill_s, self.handover_s
        if min(self.prefill_slowdown, self.decode_slowdown) < 1 or min(times) < 0:
            raise ValueError(f"need slowdowns >= 1 and times >= 0; got {self}")


@dataclass(frozen=True)
class ReplayOptions:
    """Fleet, model costs and clients of one replay."""

    policy: str = "rorqual"
    num_prefill: int = 2
    num_decode: int = 2
    max_prefill: int = 0
    """Instances that scaling may reach; 0 = the count is fixed."""
    max_decode: int = 0
    scaling: ScalingParams = field(default_factory=ScalingParams)
    """Its bounds are those of this fleet."""
    start_up_s: float = 60.0
    """From the decision to start an instance to its first work."""
    ranks_per_group: int = 8
    cost: StepCost = STUDY_COST
    step_limit_s: float = STEP_LIMIT_S
    """Longest prefill step."""
    step_tokens: int = 1 << 20
    """Most tokens of a rank in one prefill step."""
    decode: PlacementParams = field(default_factory=PlacementParams)
    max_running: int = 256
    decode_kv_tokens: int = 16_000_000
    kv_bytes_per_token: float = 890.0
    fetch_bytes_per_s: float = 40 * 2.0**30
    """Of the link that a prefill group reads stored KV over."""
    fetch_setup_s: float = 1e-3
    store_lifetime_s: float = 3 * 86400.0
    window_hold_s: float = 180.0
    replay_tokens: int = 128
    """Computed again when the window behind a hit is gone."""
    rank_cache_s: float | None = None
    """How long ranks keep pages of their own instead of sharing a store: 0 = they share; None = as
    the policy does by default."""
    host: OneHost = field(default_factory=OneHost)
    failures: tuple[Failure, ...] = ()
    is_closed_loop: bool = False
    """A session's next request follows the answer to the one before, after the recorded pause."""
    speed: float = 1.0
    """Recorded time passes this much faster."""
    spread_s: float = 3600.0
    """Sessions whose start was not recorded begin at random within this time."""
    limit_s: float = float("inf")
    """Requests that would come later are left out."""
    seed: int = 0

    def __post_init__(self) -> None:
        checked_cost(self.cost)
        if self.policy not in POLICIES:
            raise ValueError(f"policy {self.policy!r} is none of {', '.join(POLICIES)}")
        if self.rank_cache_s and self.policy in PREFILL_POLICIES:
            raise ValueError(f"policy {self.policy!r} shares one store; rank_cache_s must be 0")
        counts = self.num_prefill, self.num_decode, self.ranks_per_group, self.max_running
        if min(counts) < 1 or self.speed <= 0 or self.fetch_bytes_per_s <= 0:
            raise ValueError(f"need instances, ranks, speed and bandwidth > 0; got {self}")
        if self.step_tokens < BLOCK_TOKENS:
            raise ValueError(f"need step_tokens >= {BLOCK_TOKENS}, got {self.step_tokens}")
        if self.kv_bytes_per_token < 0 or self.replay_tokens < 0 or self.start_up_s < 0:
            raise ValueError(f"need sizes and times >= 0; got {self}")
