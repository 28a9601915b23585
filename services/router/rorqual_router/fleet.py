"""The live view of the fleet: load reports in, placements on top, waiting for who is missing."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rorqual_policy import (
    InFlight,
    InstanceKey,
    InstanceReport,
    LoadView,
    LoadViewParams,
    PlacementDecision,
    PlacementParams,
    PlacementRequest,
    VisionInstance,
    choose_decode,
    drop_silent,
    forget_placement,
    live_instances,
    note_placement,
    num_live,
    num_pages_needed,
    observe_report,
)
from rorqual_policy.decode_index import DecodeIndex
from rorqual_policy.load_view import DecodeTimes, decode_load
from rorqual_runtime.clock import Clock
from rorqual_runtime.decision_log import log_decision

_NEW_TIMES = 0.1
"""Share by which measured decode times differ from those in use before they replace them."""


class Fleet:
    """Who is alive and how loaded, from load reports; owned by one event loop."""

    def __init__(self, clock: Clock, view: LoadViewParams, placement: PlacementParams) -> None:
        self._clock = clock
        self._view = LoadView(view)
        self._placement = placement
        self._decodes = DecodeIndex(placement)
        self._settling: deque[tuple[float, InstanceKey]] = deque()
        """When a placement no longer counts on top of the reports, and where."""
        self._current_params: PlacementParams | None = None
        self._news = asyncio.Event()

    def on_report(self, report: InstanceReport) -> None:
        """Take in a load report, and wake those who wait for an instance."""
        now_s = self._clock.monotonic_s()
        self._view = observe_report(self._view, report, now_s)
        self._current_params = None
        if report.service == "decode":
            self._reindex(report.key, now_s)
        self._news.set()

    def drop_silent(self) -> None:
        """Forget instances that no longer report."""
        before, now_s = self._view.instances, self._clock.monotonic_s()
        self._view = drop_silent(self._view, now_s)
        for key in before.keys() - self._view.instances.keys():
            if key.service == "decode":
                self._reindex(key, now_s)

    def num_live(self, service: str) -> int:
        """Instances of a service that report and are not draining."""
        return num_live(self._view, service, self._clock.monotonic_s())

    def has_elder(self, service: str, instance_id: str, incarnation: int) -> bool:
        """Whether a live instance of the service is older than this one."""
        own = (incarnation, instance_id)
        return any((r.incarnation, r.instance_id) < own for r in self._reports(service))

    def is_silent(self, service: str, instance_id: str) -> bool:
        """Whether an instance has stopped reporting; one that drains has not."""
        known = self._view.instances.get(InstanceKey(service, instance_id))
        oldest_s = self._clock.monotonic_s() - self._view.params.silent_s
        return known is None or known.received_s < oldest_s

    async def wait_alive(self, services: Iterable[str], timeout_s: float) -> list[str]:
        """Wait until each service has a live instance; the ones that still have none."""
        wanted = list(services)
        until_s = self._clock.monotonic_s() + timeout_s
        while missing := [service for service in wanted if not self.num_live(service)]:
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return missing
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), left_s)
            except TimeoutError:
                continue
        return []

    def model_fingerprint(self) -> str:
        """What the live prefill instances say they run; empty when none says so."""
        return max((r.model_fingerprint for r in self._reports("prefill")), default="")

    def max_context_tokens(self) -> int:
        """Longest context that any live prefill instance takes; 0 when none says so."""
        return max((r.max_context_tokens for r in self._reports("prefill")), default=0)

    def num_replayed_tokens(self) -> int:
        """Most of a stored prefix that any live prefill instance may have to run again."""
        return max((r.num_replayed_tokens for r in self._reports("prefill")), default=0)

    def prefill_tokens_per_s(self) -> float:
        """Compute rate of all live prefill instances together; 0.0 when not measured."""
        return sum(report.tokens_per_s for report in self._reports("prefill"))

    def largest_decode_pages(self) -> int:
        """Pages of the largest live decode instance; 0 without any."""
        return max((report.num_total_pages for report in self._reports("decode")), default=0)

    def vision_instances(self, sent_work: Mapping[str, int]) -> list[VisionInstance]:
        """Live vision instances as `choose_vision` wants them.

        sent_work: what was asked of them here and not answered. Reports lag behind that, and show
        what others asked for.
        """
        return [
            VisionInstance(
                report.instance_id,
                queued_work=max(report.queued_patches, sent_work.get(report.instance_id, 0)),
                step_work=report.step_patches,
            )
            for report in self._reports("vision")
        ]

    def place(self, request: PlacementRequest) -> PlacementDecision:
        """Choose a decode instance and count the request there from now on."""
        now_s = self._clock.monotonic_s()
        self._settle(now_s)
        if request.excluded_ids:
            self._forget(request.request_id, now_s)
        params = self._placement_params()
        candidates = self._decodes.candidates(request, params, self._is_usable(now_s))
        decision = choose_decode(candidates, request, params)
        log_decision("placement", (candidates, request, params), decision)
        if decision.instance_id is not None:
            placed = InFlight(
                request.request_id,
                num_tokens=request.num_context_tokens,
                num_pages=num_pages_needed(request, params),
                placed_s=now_s,
            )
            key = InstanceKey("decode", decision.instance_id)
            self._view = note_placement(self._view, key, placed)
            self._reindex(key, now_s)
            self._settling.append((now_s + self._view.params.settle_s, key))
        return decision

    def _is_usable(self, now_s: float) -> Callable[[str], bool]:
        """Whether an instance was heard of lately; the index may have one for a second longer."""
        oldest_s = now_s - self._view.params.silent_s
        instances = self._view.instances
        return lambda who: instances[InstanceKey("decode", who)].received_s >= oldest_s

    def _settle(self, now_s: float) -> None:
        while self._settling and self._settling[0][0] < now_s:
            _, key = self._settling.popleft()
            self._reindex(key, now_s)

    def _forget(self, request_id: str, now_s: float) -> None:
        before = self._view.instances
        self._view = forget_placement(self._view, "decode", request_id)
        for key, known in self._view.instances.items():
            if known is not before[key]:
                self._reindex(key, now_s)

    def _reindex(self, key: InstanceKey, now_s: float) -> None:
        """The index knows the instance as the view does now."""
        known = self._view.instances.get(key)
        if known is None or known.report.draining:
            self._decodes.remove(key.instance_id)
        else:
            self._decodes.set(decode_load(known, self._view.params, now_s))

    def _placement_params(self) -> PlacementParams:
        """The settings' parameters with what the fleet says of itself, as of the last report."""
        if self._current_params is None:
            reports = list(self._reports("decode"))
            self._weigh_by([r.decode_times for r in reports if r.decode_times is not None])
            self._current_params = replace(
                self._decodes.params,
                num_deciders=max(1, self.num_live("router")),
                max_context_tokens=max((r.max_context_tokens for r in reports), default=0),
            )
        return self._current_params

    def _weigh_by(self, measured: Sequence[DecodeTimes]) -> None:
        """Mean of what the instances measure; small changes are left alone, all are weighed anew
        for each. Without any measurement what is known already stays."""
        if not measured:
            return
        mean = DecodeTimes(*(sum(times) / len(measured) for times in zip(*measured, strict=True)))
        known = self._decodes.params
        before = DecodeTimes(known.base_s, known.per_request_s, known.per_kv_token_s)
        if any(abs(a - b) > _NEW_TIMES * b for a, b in zip(mean, before, strict=True)):
            self._decodes.weigh_by(replace(self._placement, **mean._asdict()))

    def _reports(self, service: str) -> Iterable[InstanceReport]:
        now_s = self._clock.monotonic_s()
        return (known.report for known in live_instances(self._view, service, now_s))
