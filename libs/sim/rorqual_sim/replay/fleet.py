"""The replay itself: one queue of events, every decision a policy function."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from rorqual_policy.buckets import BUCKET_LIMITS_TOKENS
from rorqual_policy.scaling import ScalingState, Target, desired_counts
from rorqual_policy.scaling_load import FleetDemand, InstanceCounts
from rorqual_policy.step_cost import chunk_cost_s

from rorqual_sim.replay.decode import DecodeFleet, Instance
from rorqual_sim.replay.options import Failure, ReplayOptions, Role
from rorqual_sim.replay.prefill import NUM_QUEUES, Group, PrefillFleet
from rorqual_sim.replay.requests import Request, schedule
from rorqual_sim.replay.scaling import (
    SCALE_EVERY_S,
    fleet_demand,
    missed_per_s,
    scaling_params,
    to_drain,
)
from rorqual_sim.replay.store import RankStores
from rorqual_sim.traces import Trace
from rorqual_sim.workloads import price

INF = float("inf")
_SAMPLES = 400
_STUCK_S = 600.0
"""Longer than scaling thinks about anything."""


@dataclass
class Sample:
    """The fleet at one time."""

    at_s: float
    num_queued: int
    num_decoding: int
    num_prefill: int
    num_decode: int
    prefill_busy_s: float
    """Of all instances together, since the begin."""
    decode_busy_s: float


@dataclass
class ReplayResult:
    """Every request with its times, and the fleet over time."""

    requests: list[Request]
    samples: list[Sample]
    end_s: float
    prefill_busy: float
    """Share of the prefill instances' time in which they computed."""
    decode_busy: float
    prefill_card_s: float
    decode_card_s: float
    num_replays: int
    num_refused: int
    """Requests that no decode instance could ever hold."""
    actions: list[str] = field(default_factory=list)


class Replay:
    """One run over a trace. `run` may be called once."""

    def __init__(self, trace: Trace, options: ReplayOptions) -> None:
        self._options = options
        buckets = np.searchsorted(BUCKET_LIMITS_TOKENS, trace.input_tokens, side="right")
        shares = np.bincount(buckets, price(trace, options.cost).work_s, NUM_QUEUES).tolist()
        self._plan = schedule(trace, options, buckets.tolist())
        longest = int((trace.input_tokens + trace.output_tokens).max())
        self._prefill = PrefillFleet(options, shares, longest)
        self._stores = RankStores(options, self._prefill.rank_cache_s)
        self._decode = DecodeFleet(options)
        self._no_room: deque[Request] = deque()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_events = 0
        self._num_done = 0
        self._num_refused = 0
        self._num_expected = 0
        self._samples: list[Sample] = []
        self._scaling = ScalingState()
        self._missed: deque[tuple[float, int]] = deque()
        self._starting: dict[Role, list[float]] = {Role.PREFILL: [], Role.DECODE: []}
        self._up_since_s: dict[tuple[Role, int], float] = {}
        self._card_s = {Role.PREFILL: 0.0, Role.DECODE: 0.0}
        self._actions: list[str] = []
        self._now_s = 0.0
        self._alive_s = 0.0
        self._num_clocks = 0

    def run(self, on_progress: Callable[[int, int], None] | None = None) -> ReplayResult:
        """Until every request is done. on_progress(done, known so far) is called now and then."""
        for at_s, number in self._plan.arrivals:
            self._at(at_s, self._arrive, self._plan.requests[number])
        for failure in self._options.failures:
            self._at(failure.at_s, self._fail, failure)
        self._start_clocks()
        while self._events and self._num_done < self._num_expected:
            self._check_that_something_happens()
            self._now_s, _, handle, arguments = heapq.heappop(self._events)
            handle(*arguments)
            if on_progress and self._num_events % 1000 == 0:
                on_progress(self._num_done, self._num_expected)
        if on_progress:
            on_progress(self._num_done, self._num_expected)
        return self._result()

    def _check_that_something_happens(self) -> None:
        """Raises: RuntimeError when nothing but clocks is left while requests wait: our own bug."""
        if len(self._events) > self._num_clocks:
            self._alive_s = self._now_s
        elif self._now_s - self._alive_s > _STUCK_S:
            num_left = self._num_expected - self._num_done
            raise RuntimeError(f"{num_left} requests wait for ever at {self._now_s:.1f} s")

    def _start_clocks(self) -> None:
        self._num_expected = len(self._plan.arrivals)
        for group in self._prefill.groups:
            self._up_since_s[Role.PREFILL, group.number] = 0.0
        for instance in self._decode.instances:
            self._up_since_s[Role.DECODE, instance.number] = 0.0
        span_s = self._plan.arrivals[-1][0] if self._plan.arrivals else 0.0
        self._sample(max(span_s / _SAMPLES, 1e-3))
        self._num_clocks = 1
        if max(self._options.max_prefill, self._options.max_decode) > 0:
            self._num_clocks += 1
            self._scale()

    def _at(self, at_s: float, handle: Callable[..., None], *arguments: object) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, handle, arguments))

    # Requests

    def _arrive(self, request: Request) -> None:
        request.arrival_s = self._now_s
        if self._decode.can_hold(request):
            self._at(self._now_s + self._options.host.before_prefill_s, self._submit, request)
        else:
            self._num_refused += 1
            self._end(request, self._now_s)

    def _submit(self, request: Request) -> None:
        """Match the prefix and queue or push what is left to compute."""
        request.holder = self._prefill.choose_holder(request, partial(self._cached, request))
        cached, num_replayed = self._stores.of(request.holder).match(request, self._now_s)
        if not request.num_restarts:
            request.cached_tokens = cached
        request.context_tokens = cached - num_replayed
        request.remaining_tokens = request.total_tokens - request.context_tokens
        request.estimate_s = chunk_cost_s(
            self._options.cost, request.remaining_tokens, request.context_tokens
        )
        self._missed.append((self._now_s, request.remaining_tokens))
        group = self._prefill.enqueue(request, self._now_s)
        if group is not None:
            self._step(group)

    def _cached(self, request: Request, holder: tuple[int, int]) -> int:
        """Tokens of its prompt that a rank has; the same for all where they share a store."""
        if not self._stores.are_local:
            return 0
        num_pages = self._stores.of(holder).num_matched(request, self._now_s)
        return num_pages * request.page_tokens

    def _step(self, group: Group) -> None:
        is_shared = any(instance.running for instance in self._decode.instances)
        slowdown = self._options.host.prefill_slowdown if is_shared else 1.0
        end_s = self._prefill.begin_step(group, self._now_s, slowdown)
        self._share_host()
        if end_s < INF:
            self._at(end_s, self._step_ended, group, group.incarnation)
        elif group.is_draining:
            self._retire(Role.PREFILL, group)

    def _step_ended(self, group: Group, incarnation: int) -> None:
        if incarnation != group.incarnation:
            return
        ended, group.ending = group.ending, []
        for _, request in ended:
            self._prefilled(request)
        self._step(group)

    def _share_host(self) -> None:
        """Decode steps are slower while prefill computes on the same processors."""
        if self._options.host.decode_slowdown == 1.0:
            return
        is_shared = any(self._now_s < group.end_s < INF for group in self._prefill.groups)
        slowdown = self._options.host.decode_slowdown if is_shared else 1.0
        for instance in self._decode.instances:
            if instance.slowdown != slowdown:
                self._finish(self._decode.advance(instance, self._now_s))
                instance.slowdown = slowdown
                self._look_after(instance)

    def _prefilled(self, request: Request) -> None:
        self._stores.of(request.holder).write(request, self._now_s)
        if request.first_token_s == INF:
            request.first_token_s = self._now_s
        request.num_emitted += 1
        if request.num_emitted >= request.output_tokens:
            self._done(request, self._now_s)
            return
        self._at(self._now_s + self._options.host.handover_s, self._handed_over, request)

    def _handed_over(self, request: Request) -> None:
        self._no_room.append(request)
        self._place_waiting()

    def _place_waiting(self) -> None:
        while self._no_room:
            for instance in self._decode.instances:
                self._finish(self._decode.advance(instance, self._now_s))
            instance_or_none = self._decode.place(self._no_room[0])
            if instance_or_none is None:
                return
            self._no_room.popleft()
            self._watch(instance_or_none)

    def _watch(self, instance: Instance) -> None:
        """Wake when its first request is done; what was asked for before no longer counts."""
        instance.incarnation += 1
        at_s = self._decode.next_finish_s(instance)
        if at_s < INF:
            self._at(at_s, self._decoded, instance, instance.incarnation)

    def _decoded(self, instance: Instance, incarnation: int) -> None:
        if incarnation == instance.incarnation:
            self._look_after(instance)

    def _look_after(self, instance: Instance) -> None:
        """What has ended by now leaves, and others take its room."""
        self._finish(self._decode.advance(instance, self._now_s))
        self._watch(instance)
        if instance.is_draining and not instance.running:
            self._retire(Role.DECODE, instance)
        self._place_waiting()

    def _finish(self, requests: list[Request]) -> None:
        for request in requests:
            self._done(request, request.done_s)

    def _done(self, request: Request, at_s: float) -> None:
        request.done_s = at_s
        self._end(request, at_s)

    def _end(self, request: Request, at_s: float) -> None:
        self._num_done += 1
        if request.next_number >= 0:
            next_s = max(self._now_s, at_s + request.pause_s)
            if next_s <= self._options.limit_s:
                self._num_expected += 1
                self._at(next_s, self._arrive, self._plan.requests[request.next_number])

    # Failures and scaling

    def _fail(self, failure: Failure) -> None:
        is_prefill = failure.role is Role.PREFILL
        fleet: list[Any] = self._prefill.groups if is_prefill else self._decode.instances
        if failure.number >= len(fleet) or not fleet[failure.number].is_up:
            return
        member = fleet[failure.number]
        if not is_prefill:
            self._finish(self._decode.advance(member, self._now_s))
        lost = member.give_up()
        if is_prefill:
            self._stores.forget(member.number)
        self._account(failure.role, member.number)
        self._actions.append(f"{self._now_s:.1f} s: {failure.role} {member.number} failed")
        self._prefill.assign()
        self._at(self._now_s + failure.down_s, self._come_up, failure.role, member)
        for request in sorted(lost, key=lambda request: request.number):
            request.num_restarts += 1
            self._submit(request)

    def _come_up(self, role: Role, member: Group | Instance) -> None:
        member.is_up, member.is_draining = True, False
        self._up_since_s[role, member.number] = self._now_s
        self._actions.append(f"{self._now_s:.1f} s: {role} {member.number} is up")
        if isinstance(member, Group):
            self._prefill.assign()
            self._step(member)
        else:
            member.at_s = self._now_s
            self._place_waiting()

    def _retire(self, role: Role, member: Group | Instance) -> None:
        if member.is_up:
            member.is_up = False
            self._account(role, member.number)

    def _account(self, role: Role, number: int) -> None:
        since_s = self._up_since_s.pop((role, number), self._now_s)
        self._card_s[role] += self._now_s - since_s

    def _scale(self) -> None:
        params = scaling_params(self._options)
        self._scaling, decision = desired_counts(self._scaling, self._demand(), params)
        if self._options.max_prefill:
            self._change(Role.PREFILL, decision.targets["prefill"])
        if self._options.max_decode:
            self._change(Role.DECODE, decision.targets["decode"])
        self._at(self._now_s + SCALE_EVERY_S, self._scale)

    def _demand(self) -> FleetDemand:
        return fleet_demand(
            self._now_s,
            self._options,
            self._prefill,
            self._decode,
            lambda role: InstanceCounts(self._num_up(role), self._pending(role)),
            arriving_per_s=missed_per_s(self._missed, self._now_s),
            num_unplaced=len(self._no_room),
        )

    def _pending(self, role: Role) -> tuple[float, ...]:
        self._starting[role] = [at_s for at_s in self._starting[role] if at_s > self._now_s]
        return tuple(self._starting[role])

    def _num_up(self, role: Role) -> int:
        fleet: list[Any] = self._prefill.groups if role is Role.PREFILL else self._decode.instances
        return sum(member.is_up and not member.is_draining for member in fleet)

    def _change(self, role: Role, target: Target) -> None:
        for _ in range(target.num_change):
            ready_s = self._now_s + self._options.start_up_s
            self._starting[role].append(ready_s)
            self._at(ready_s, self._add, role)
        if target.num_change < 0:
            self._drain(role, -target.num_change)
        if target.num_change:
            self._actions.append(
                f"{self._now_s:.1f} s: {role} {target.num_change:+d}: {target.reason}"
            )

    def _add(self, role: Role) -> None:
        if role is Role.PREFILL:
            self._come_up(role, self._prefill.add_group())
        else:
            self._decode.instances.append(Instance(len(self._decode.instances)))
            self._come_up(role, self._decode.instances[-1])

    def _drain(self, role: Role, num: int) -> None:
        fleet: Sequence[Group | Instance] = (
            self._prefill.groups if role is Role.PREFILL else self._decode.instances
        )
        for member in to_drain(fleet, num):
            member.is_draining = True
            if member.is_empty:
                self._retire(role, member)
        self._prefill.assign()

    # Result

    def _sample(self, every_s: float) -> None:
        self._samples.append(
            Sample(
                self._now_s,
                self._prefill.num_queued,
                sum(len(i.running) for i in self._decode.instances),
                self._num_up(Role.PREFILL),
                self._num_up(Role.DECODE),
                sum(group.busy_s for group in self._prefill.groups),
                sum(instance.busy_s for instance in self._decode.instances),
            )
        )
        self._at(self._now_s + every_s, self._sample, every_s)

    def _result(self) -> ReplayResult:
        done = [r for r in self._plan.requests if r.done_s < INF]
        end_s = max((r.done_s for r in done), default=0.0)
        self._now_s = max(self._now_s, end_s)
        for role, number in list(self._up_since_s):
            self._account(role, number)
        prefill_s, decode_s = self._card_s[Role.PREFILL], self._card_s[Role.DECODE]
        ranks = self._options.ranks_per_group
        return ReplayResult(
            requests=done,
            samples=self._samples,
            end_s=end_s,
            prefill_busy=sum(g.busy_s for g in self._prefill.groups) / max(prefill_s, 1e-9),
            decode_busy=sum(i.busy_s for i in self._decode.instances) / max(decode_s, 1e-9),
            prefill_card_s=prefill_s * ranks,
            decode_card_s=decode_s,
            num_replays=self._stores.num_replays,
            num_refused=self._num_refused,
            actions=self._actions,
        )
