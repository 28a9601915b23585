"""Decode instances of a replay. Between joins and leaves their steps grow evenly: no step is
simulated on its own."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import sqrt

from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.placement import (
    DecodeInstance,
    PlacementParams,
    PlacementRequest,
    choose_decode,
    estimate_step_s,
    num_pages_needed,
)

from rorqual_sim.replay.options import ReplayOptions
from rorqual_sim.replay.requests import Request

INF = float("inf")


@dataclass
class Instance:
    """One decode instance; a request joins with the step that is under way."""

    number: int
    incarnation: int = 0
    is_up: bool = True
    is_draining: bool = False
    num_steps: int = 0
    at_s: float = 0.0
    """When step num_steps began."""
    kv_tokens: int = 0
    used_pages: int = 0
    running: list[tuple[int, int, Request]] = field(default_factory=list)
    """Heap of (step that ends it, number, request)."""
    pages: dict[int, int] = field(default_factory=dict)
    busy_s: float = 0.0
    slowdown: float = 1.0
    """Its steps take this much longer now."""

    @property
    def is_empty(self) -> bool:
        return not self.running

    def give_up(self) -> list[Request]:
        """Everything it had, when it is gone; what was emitted is known elsewhere."""
        lost = []
        for last_step, _, request in self.running:
            left = last_step - self.num_steps
            request.num_emitted = max(1, request.output_tokens - left)
            lost.append(request)
        self.incarnation += 1
        self.is_up, self.kv_tokens, self.used_pages = False, 0, 0
        self.running, self.pages = [], {}
        return lost


def _wanted(request: Request) -> PlacementRequest:
    num_left = request.output_tokens - request.num_emitted
    return PlacementRequest(str(request.number), request.total_tokens, num_left)


class DecodeFleet:
    """Instances, and the prompts that wait for room on one."""

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._params: PlacementParams = options.decode
        self._total_pages = options.decode_kv_tokens // BLOCK_TOKENS
        self.instances = [Instance(number) for number in range(options.num_decode)]

    def can_hold(self, request: Request) -> bool:
        """Whether an idle instance has room for all of its KV."""
        needed = num_pages_needed(_wanted(request), self._params)
        return needed <= self._total_pages

    def place(self, request: Request) -> Instance | None:
        """The instance that takes it from now on, up to which all were advanced; None while none
        has room."""
        wanted = _wanted(request)
        usable = [i for i in self.instances if i.is_up and not i.is_draining]
        decision = choose_decode([self._snapshot(i) for i in usable], wanted, self._params)
        if decision.instance_id is None:
            return None
        instance = self.instances[int(decision.instance_id)]
        left = request.output_tokens - request.num_emitted
        entry = (instance.num_steps + left, request.number, request)
        heapq.heappush(instance.running, entry)
        instance.kv_tokens += request.total_tokens
        instance.pages[request.number] = num_pages_needed(wanted, self._params)
        instance.used_pages += instance.pages[request.number]
        return instance

    def _snapshot(self, instance: Instance) -> DecodeInstance:
        return DecodeInstance(
            instance_id=str(instance.number),
            num_running=len(instance.running),
            max_running=self._options.max_running,
            kv_tokens=instance.kv_tokens,
            num_free_pages=self._total_pages - instance.used_pages,
            num_total_pages=self._total_pages,
        )

    def advance(self, instance: Instance, now_s: float) -> list[Request]:
        """Run the steps that end by now; the requests that they finish."""
        done: list[Request] = []
        while instance.running and self.next_finish_s(instance) <= now_s:
            last_step = instance.running[0][0]
            self._run_steps(instance, last_step - instance.num_steps)
            while instance.running and instance.running[0][0] <= last_step:
                request = heapq.heappop(instance.running)[2]
                request.num_emitted = request.output_tokens
                request.done_s = instance.at_s
                instance.kv_tokens -= request.total_tokens
                instance.used_pages -= instance.pages.pop(request.number)
                done.append(request)
        if instance.running:
            self._run_steps(instance, self._steps_within(instance, now_s - instance.at_s))
        else:
            instance.at_s = now_s
        return done

    def next_finish_s(self, instance: Instance) -> float:
        """When the first of its requests is done; infinity without one."""
        if not instance.running:
            return INF
        return instance.at_s + self._steps_s(instance, instance.running[0][0] - instance.num_steps)

    def _steps_s(self, instance: Instance, num_steps: int) -> float:
        """Seconds of the next steps: each has one more token a request to read."""
        num_running = len(instance.running)
        first_s = estimate_step_s(num_running, instance.kv_tokens, self._params)
        growth_s = self._params.per_kv_token_s * num_running
        steps_s = num_steps * first_s + growth_s * num_steps * (num_steps - 1) / 2
        return instance.slowdown * steps_s

    def _steps_within(self, instance: Instance, seconds: float) -> int:
        num_running = len(instance.running)
        first_s = estimate_step_s(num_running, instance.kv_tokens, self._params)
        half_s = self._params.per_kv_token_s * num_running / 2
        linear_s = first_s - half_s
        full_s = seconds / instance.slowdown
        num = int(2 * full_s / (linear_s + sqrt(linear_s**2 + 4 * half_s * full_s)))
        limit = instance.running[0][0] - instance.num_steps - 1
        num = max(0, min(num, limit))
        while num and self._steps_s(instance, num) > seconds:
            num -= 1
        return num

    def _run_steps(self, instance: Instance, num_steps: int) -> None:
        took_s = self._steps_s(instance, num_steps)
        instance.busy_s += took_s
        instance.at_s += took_s
        instance.num_steps += num_steps
        instance.kv_tokens += num_steps * len(instance.running)
