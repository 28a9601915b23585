"""Who decides instance counts over a day: nobody, our policy, or a threshold of utilisation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from math import ceil

from rorqual_policy.scaling import ScalingParams, ScalingState, desired_counts
from rorqual_policy.scaling_load import FleetDemand, FlowDemand, HoldDemand, InstanceCounts


@dataclass(frozen=True)
class Seen:
    """What an autoscaler may know now."""

    now_s: float
    prefill: InstanceCounts
    decode: InstanceCounts
    arriving_tokens_per_s: float
    """Missed ones, over the last seconds."""
    backlog_tokens: float
    tokens_per_s: float
    """What a prefill instance computes."""
    num_held: float
    """Requests that decode has or is about to have."""
    slots: int
    prefill_busy: float
    """Mean utilisation of prefill over the last minute, at most 1."""
    decode_busy: float
    """Share of the places that are taken."""


class Autoscaler(ABC):
    """Asked every interval_s for the counts to keep: prefill and decode."""

    interval_s: int

    @abstractmethod
    def counts(self, seen: Seen, kept: tuple[int, int]) -> tuple[int, int]: ...


class Fixed(Autoscaler):
    """What there is stays."""

    interval_s = 3600

    def counts(self, seen: Seen, kept: tuple[int, int]) -> tuple[int, int]:
        return kept


class ByDemand(Autoscaler):
    """`desired_counts`, the scaler's own."""

    interval_s = 5

    def __init__(self, params: ScalingParams) -> None:
        self._params = params
        self._state = ScalingState()

    def counts(self, seen: Seen, kept: tuple[int, int]) -> tuple[int, int]:
        demand = FleetDemand(
            now_s=seen.now_s,
            prefill=FlowDemand(
                seen.prefill, seen.arriving_tokens_per_s, seen.backlog_tokens, seen.tokens_per_s
            ),
            decode=HoldDemand(seen.decode, num_held=int(seen.num_held), slots=seen.slots),
        )
        self._state, decision = desired_counts(self._state, demand, self._params)
        targets = decision.targets
        return kept[0] + targets["prefill"].num_change, kept[1] + targets["decode"].num_change


@dataclass(frozen=True)
class ThresholdParams:
    """Source: Kubernetes' horizontal pod autoscaler, its documented algorithm and defaults."""

    target: float
    """Utilisation that is aimed at."""
    tolerance: float = 0.1
    down_after_s: float = 300.0
    """Down goes to the highest recommendation of so long."""
    most_growth: float = 2.0
    """In one decision; four are always allowed."""


class ByUtilisation(Autoscaler):
    """Counts in proportion to utilisation over its target. It can't see past 100 %: work that
    waits, or that nobody could take, looks like a full fleet and no more."""

    interval_s = 15

    def __init__(
        self, params: ThresholdParams, least: tuple[int, int], most: tuple[int, int]
    ) -> None:
        self._params, self._least, self._most = params, least, most
        self._recommended: tuple[deque[tuple[float, int]], ...] = (deque(), deque())

    def counts(self, seen: Seen, kept: tuple[int, int]) -> tuple[int, int]:
        return (
            self._one(0, seen.now_s, seen.prefill.num_running, kept[0], seen.prefill_busy),
            self._one(1, seen.now_s, seen.decode.num_running, kept[1], seen.decode_busy),
        )

    def _one(self, place: int, now_s: float, num_ready: int, num_kept: int, busy: float) -> int:
        wanted = self._recommend(num_ready, num_kept, busy)
        wanted = min(max(wanted, self._least[place]), self._most[place])
        recent = self._recommended[place]
        if not recent:
            recent.append((now_s, num_kept))
        recent.append((now_s, wanted))
        while recent[0][0] <= now_s - self._params.down_after_s:
            recent.popleft()
        highest = max(num for _, num in recent)
        if wanted < num_kept:
            return min(num_kept, highest)
        return min(wanted, max(int(num_kept * self._params.most_growth), num_kept + 4))

    def _recommend(self, num_ready: int, num_kept: int, busy: float) -> int:
        """Pods that are not ready count as idle when that keeps it from growing."""
        ratio = busy / self._params.target
        if ratio > 1 and num_kept > num_ready:
            ratio = max(1.0, ratio * num_ready / num_kept)
            return num_kept if ratio <= 1 + self._params.tolerance else ceil(ratio * num_kept)
        if abs(ratio - 1) <= self._params.tolerance:
            return num_kept
        return ceil(ratio * num_ready)
