"""The live view of the fleet: load reports in, placements on top, waiting for who is missing."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from rorqual_policy import (
    InstanceReport,
    LoadView,
    PlacementDecision,
    PlacementParams,
    PlacementRequest,
    VisionInstance,
    choose_decode,
    num_pages_needed,
)
from rorqual_policy.decode_loads import DecodeLoads
from rorqual_policy.load_view import DecodeTimes
from rorqual_runtime.clock import Clock
from rorqual_runtime.decision_log import log_decision

_NEW_TIMES = 0.1
"""Share by which measured decode times differ from those in use before they replace them."""


_PARAMS_S = 0.5
"""For so long placement goes by what the fleet said of itself before it is looked at again."""


class Fleet:
    """Who is alive and how loaded, from load reports; owned by one event loop."""

    def __init__(
        self,
        clock: Clock,
        placement: PlacementParams,
        *,
        silent_s: float = 2.0,
        settle_s: float = 1.0,
        salt: str = "",
    ) -> None:
        """silent_s: see `LoadView`. settle_s, salt: see `DecodeLoads`."""
        self._clock = clock
        self._view = LoadView(silent_s)
        self._given = placement
        self._params = placement
        self._params_until_s = -inf
        self._decodes = DecodeLoads(placement, silent_s=silent_s, settle_s=settle_s, salt=salt)
        self._news = asyncio.Event()

    def on_report(self, report: InstanceReport) -> None:
        """Take in a load report, and wake those who wait for an instance."""
        now_s = self._clock.monotonic_s()
        if self._view.is_silent(report.service, report.instance_id, now_s):
            self._params_until_s = -inf  # somebody new
        if not self._view.observe(report, now_s):
            return
        if report.service == "decode":
            self._decodes.hear(report, now_s)
        self._news.set()

    def drop_silent(self) -> None:
        """Forget instances that no longer report."""
        for report in self._view.drop_silent(self._clock.monotonic_s()):
            if report.service == "decode":
                self._decodes.remove(report.instance_id)

    def num_live(self, service: str) -> int:
        """Instances of a service that report and are not draining."""
        return sum(1 for _ in self._reports(service))

    def is_alive(self, service: str) -> bool:
        """Whether a service has any such instance."""
        return any(True for _ in self._reports(service))

    def has_elder(self, service: str, instance_id: str, incarnation: int) -> bool:
        """Whether a live instance of the service is older than this one."""
        own = (incarnation, instance_id)
        return any((r.incarnation, r.instance_id) < own for r in self._reports(service))

    def is_silent(self, service: str, instance_id: str) -> bool:
        """Whether an instance has stopped reporting; one that drains has not."""
        return self._view.is_silent(service, instance_id, self._clock.monotonic_s())

    async def wait_alive(self, services: Iterable[str], timeout_s: float) -> list[str]:
        """Wait until each service has a live instance; the ones that still have none."""
        wanted = list(services)
        until_s = self._clock.monotonic_s() + timeout_s
        while missing := [service for service in wanted if not self.is_alive(service)]:
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
        if now_s >= self._params_until_s:
            self._learn_params(now_s)
        params = self._params
        candidates = self._decodes.candidates(request, params, now_s)
        decision = choose_decode(candidates, request, params)
        log_decision("placement", (candidates, request, params), decision)
        if decision.instance_id is not None:
            num_pages = num_pages_needed(request, params)
            self._decodes.note(decision.instance_id, request, num_pages, now_s)
        return decision

    def _learn_params(self, now_s: float) -> None:
        """The settings' parameters with what the fleet says of itself."""
        reports = list(self._reports("decode"))
        self._weigh_by([r.decode_times for r in reports if r.decode_times is not None])
        self._params = replace(
            self._params,
            num_deciders=max(1, self.num_live("router")),
            max_context_tokens=max((r.max_context_tokens for r in reports), default=0),
        )
        self._params_until_s = now_s + _PARAMS_S

    def _weigh_by(self, measured: Sequence[DecodeTimes]) -> None:
        """Mean of what the instances measure; small changes are left alone, all are weighed anew
        for each. Without any measurement what is known already stays."""
        if not measured:
            return
        mean = DecodeTimes(*(sum(times) / len(measured) for times in zip(*measured, strict=True)))
        known = self._params
        before = DecodeTimes(known.base_s, known.per_request_s, known.per_kv_token_s)
        if any(abs(a - b) > _NEW_TIMES * b for a, b in zip(mean, before, strict=True)):
            self._params = replace(self._given, **mean._asdict())
            self._decodes.weigh_by(self._params)

    def _reports(self, service: str) -> Iterable[InstanceReport]:
        return self._view.live(service, self._clock.monotonic_s())
