"""What is replayed on what."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from rorqual_policy.placement import PlacementParams
from rorqual_policy.prefill_policy import PREFILL_POLICIES
from rorqual_policy.step_cost import STUDY_COST, StepCost, checked_cost


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
class ReplayOptions:
    """Fleet, model costs and clients of one replay."""

    policy: str = "rorqual"
    num_prefill: int = 2
    num_decode: int = 2
    max_prefill: int = 0
    """Instances that scaling may reach; 0 = the count is fixed."""
    max_decode: int = 0
    start_up_s: float = 60.0
    """From the decision to start an instance to its first work."""
    ranks_per_group: int = 8
    cost: StepCost = STUDY_COST
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
        if self.cost.a0_s <= 0:
            raise ValueError(f"cost.a0_s must be > 0, a step takes time; got {self.cost.a0_s}")
        if self.policy not in PREFILL_POLICIES:
            raise ValueError(f"policy {self.policy!r} is none of {sorted(PREFILL_POLICIES)}")
        counts = self.num_prefill, self.num_decode, self.ranks_per_group, self.max_running
        if min(counts) < 1 or self.speed <= 0 or self.fetch_bytes_per_s <= 0:
            raise ValueError(f"need instances, ranks, speed and bandwidth > 0; got {self}")
        if self.kv_bytes_per_token < 0 or self.replay_tokens < 0 or self.start_up_s < 0:
            raise ValueError(f"need sizes and times >= 0; got {self}")
