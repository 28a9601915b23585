"""The fleet of a day: prefill as a pooled queue, decode as a level of running requests.

Nothing here knows a single request. With hundreds of cards behind one queue the wait of a prompt is
that of its cohort; on a small fleet chance adds to it (`bench_scaling` compares with the replay).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from rorqual_policy.placement import PlacementParams, estimate_step_s
from rorqual_policy.prefill_policy import STEP_LIMIT_S, rorqual_policy
from rorqual_policy.step_cost import STUDY_COST, StepCost, step_budget_s

from rorqual_sim.day.instances import Instances
from rorqual_sim.day.mix import Mix
from rorqual_sim.day.queue import PromptQueue


@dataclass(frozen=True)
class Objectives:
    """When a request was served well."""

    ttft_s: float = 2.0
    ttft_ratio: float = 5.0
    """Or within so many times what its prompt takes alone, whichever is more."""
    tpot_s: float = 0.020


@dataclass(frozen=True)
class DayFleet:
    """Sizes and costs; an instance of prefill is a group of ranks, one card each."""

    ranks_per_group: int = 8
    cost: StepCost = STUDY_COST
    step_limit_s: float = STEP_LIMIT_S
    decode: PlacementParams = field(default_factory=PlacementParams)
    max_running: int = 256
    """Requests that a decode instance, one card, runs at once."""
    start_up_s: float = 60.0
    decode_drain_s: float = 60.0
    """Cards of a decode instance that is taken away are paid for so long."""
    prefill_drain_s: float = 5.0
    failures_per_hour: float = 0.01
    """Share of the instances."""
    objectives: Objectives = field(default_factory=Objectives)

    @property
    def tokens_efficiency(self) -> float:
        """Share of a full step that is work."""
        return 1.0 - self.cost.a0_s / self.step_limit_s


class DayState:
    """One run, a second at a time."""

    def __init__(
        self, fleet: DayFleet, mix: Mix, num_prefill: int, num_decode: int, seed: int
    ) -> None:
        self._fleet, self._mix = fleet, mix
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._policy = rorqual_policy(fleet.cost, fleet.step_limit_s)
        self.queue = PromptQueue(mix.work_s, self._policy.order)
        self.prefill = Instances(
            num_prefill,
            cards=fleet.ranks_per_group,
            start_up_s=fleet.start_up_s,
            drain_s=fleet.prefill_drain_s,
        )
        self.decode = Instances(
            num_decode, cards=1, start_up_s=fleet.start_up_s, drain_s=fleet.decode_drain_s
        )
        self.num_running = 0.0
        self.num_unplaced = 0.0
        """Prefilled, and no decode instance has a place."""
        self.num_asked = 0.0
        self.num_good = 0.0
        self.prefill_busy = 0.0
        """Share of the ranks' time of the last second that was work."""
        self._slack_s = [self._slack(work_s) for work_s in mix.work_s]

    @property
    def ranks(self) -> int:
        return self.prefill.num_ready * self._fleet.ranks_per_group

    def second(self, now_s: float, nums: list[int]) -> None:
        """Everything that happens in the second from now_s on."""
        self.prefill.advance(now_s, 1.0)
        self.decode.advance(now_s, 1.0)
        self._fail(now_s)
        self.queue.add(now_s, nums)
        self.num_asked += sum(nums)
        tpot_s = self._decode_second()
        rank_s = self.ranks * self._fleet.tokens_efficiency
        step_s = step_budget_s(
            self._fleet.cost, self._policy.budget, self.queue.waiting_s, max(1, self.ranks)
        )
        waiting_s = self.queue.waiting_s
        is_decode_good = tpot_s <= self._fleet.objectives.tpot_s
        for place, num, wait_s in self.queue.serve(now_s, rank_s):
            self.num_unplaced += num
            if is_decode_good and wait_s + step_s / 2 <= self._slack_s[place]:
                self.num_good += num
        self.prefill_busy = (waiting_s - self.queue.waiting_s) / rank_s if rank_s else 1.0

    def _slack(self, work_s: float) -> float:
        """What a prompt may wait beyond its own work."""
        objectives, alone_s = self._fleet.objectives, self._fleet.cost.a0_s + work_s
        limit_s = max(objectives.ttft_s, objectives.ttft_ratio * alone_s)
        return limit_s - work_s / self._fleet.tokens_efficiency - self._fleet.cost.a0_s

    def _decode_second(self) -> float:
        """Some answers end and others begin; seconds a token of those that begin now."""
        num = self.decode.num_ready
        if num == 0:
            return float("inf")
        output = self._mix.output_tokens
        per_card = self.num_running / num
        kv_tokens = int(per_card * self._mix.kv_tokens)
        step_s = estimate_step_s(int(per_card), kv_tokens, self._fleet.decode)
        ending = self.num_running * min(1.0, 1.0 / (output * step_s))
        room = max(0.0, num * self._fleet.max_running - (self.num_running - ending))
        placed = min(self.num_unplaced, room)
        self.num_running += placed - ending
        self.num_unplaced -= placed
        wait_s = self.num_unplaced / ending if self.num_unplaced > 0 and ending > 0 else 0.0
        return step_s + wait_s / output

    def _fail(self, now_s: float) -> None:
        """What a lost instance had was promised in time; all of it counts as late."""
        rate = self._fleet.failures_per_hour / 3600.0
        before = self.decode.num_ready
        num_decode = self.decode.fail(int(self._rng.binomial(before, rate)), now_s)
        if num_decode:
            lost = self.num_running * num_decode / before
            self.num_running -= lost
            self.num_good -= lost
            # from the store: what is computed again is a block and the place where it goes on
            self.num_unplaced += lost
        num_prefill = self.prefill.fail(
            int(self._rng.binomial(self.prefill.num_ready, rate)), now_s
        )
        if num_prefill:
            in_hand_s = num_prefill * self._fleet.ranks_per_group * self._fleet.step_limit_s
            lost = in_hand_s / self._mix.mean_work_s
            self.num_good -= lost
            self.queue.add(now_s, [lost / self._mix.num_classes] * self._mix.num_classes)
