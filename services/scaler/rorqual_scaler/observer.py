"""What the fleet does and is asked to do, from its load reports."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from rorqual_policy import (
    DrainCandidate,
    FleetDemand,
    FlowDemand,
    HoldDemand,
    InstanceCounts,
    InstanceReport,
    LoadView,
    slots_within,
)
from rorqual_runtime.clock import Clock

from rorqual_scaler.arrivals import Arrivals
from rorqual_scaler.convert import RecipeCounters, Reported, RouterCounters, VisionCounters
from rorqual_scaler.drivers import OwnInstances

Own = Callable[[str, Collection[str]], OwnInstances]
"""`Driver.own`"""
_TELLING_CPU_PER_S = 0.05
"""Processor time a second below which an idle recipe's housekeeping is most of it."""


@dataclass(frozen=True, slots=True)
class ObserverParams:
    """How long arrivals are looked at, and what is good enough."""

    window_s: float
    silent_s: float
    decode_step_s: float = 0.0
    """Longest decode step that is good enough; 0 = an instance is full when its places are."""


class FleetObserver:
    """Load reports in, `FleetDemand` out; owned by one event loop."""

    def __init__(self, clock: Clock, params: ObserverParams) -> None:
        self._clock = clock
        self._params = params
        self._view = LoadView(params.silent_s)
        self._arrivals = Arrivals(params.window_s, clock.monotonic_s())
        self._queued_jobs: dict[str, int] = {}
        self._vision: dict[str, VisionCounters] = {}
        self._has_recipe = False

    def on_report(self, reported: Reported) -> None:
        """Take in a load report."""
        report, now_s = reported.instance, self._clock.monotonic_s()
        self._view.observe(report, now_s)
        match reported.detail:
            case RouterCounters() as router:
                self._arrivals.note("submitted", report, router.submitted_total, now_s)
                self._arrivals.note("missed", report, router.missed_tokens_total, now_s)
                self._queued_jobs[report.instance_id] = router.queued_jobs
            case VisionCounters() as vision:
                self._arrivals.note("patches", report, vision.asked_patches_total, now_s)
                self._vision[report.instance_id] = vision
            case RecipeCounters() as recipe:
                self._arrivals.note("tokens", report, recipe.tokens_total, now_s)
                self._arrivals.note("cpu_ms", report, recipe.cpu_ms_total, now_s)
                self._has_recipe = True

    def demand(self, own: Own) -> FleetDemand:
        """The present demand and capacity, given what the driver has on its way."""
        now_s = self._clock.monotonic_s()
        self._view.drop_silent(now_s)
        prefills = self._live("prefill", own)
        return FleetDemand(
            now_s=now_s,
            prefill=self._prefill(prefills, own, now_s),
            decode=self._decode(prefills, own),
            vision=self._vision_demand(own, now_s) if self._vision else None,
            recipe=self._recipe(own, now_s) if self._has_recipe else None,
        )

    def drain_candidates(
        self, service: str, removable: Collection[str], own: Own
    ) -> list[DrainCandidate]:
        """What each of the removable instances would have to end or hand over."""
        at_work = {report.instance_id: report for report in self._live(service, own)}
        found = []
        for instance_id in sorted(removable):
            report = at_work.get(instance_id)
            if report is None:
                found.append(DrainCandidate(instance_id, is_pending=True))
                continue
            num_requests = report.num_running or report.num_active_requests
            found.append(
                DrainCandidate(instance_id, num_requests=num_requests, kv_tokens=report.kv_tokens)
            )
        return found

    def live_ids(self, service: str) -> list[str]:
        """Instances that report and do not drain."""
        live = self._view.live(service, self._clock.monotonic_s())
        return [report.instance_id for report in live]

    def _live(self, service: str, own: Own) -> list[InstanceReport]:
        live = list(self._view.live(service, self._clock.monotonic_s()))
        stopping = own(service, [report.instance_id for report in live]).stopping
        return [report for report in live if report.instance_id not in stopping]

    def _counts(self, service: str, own: Own) -> InstanceCounts:
        pending = own(service, self.live_ids(service)).pending
        return InstanceCounts(len(self._live(service, own)), tuple(sorted(pending.values())))

    def _prefill(self, prefills: list[InstanceReport], own: Own, now_s: float) -> FlowDemand:
        return FlowDemand(
            counts=self._counts("prefill", own),
            arriving_per_s=self._arrivals.per_s("missed", now_s),
            backlog=self._backlog_tokens(prefills, now_s),
            capacity_per_s=_mean(r.tokens_per_s for r in prefills if r.tokens_per_s > 0),
        )

    def _decode(self, prefills: list[InstanceReport], own: Own) -> HoldDemand:
        decodes = self._live("decode", own)
        num_running = sum(report.num_running for report in decodes)
        return HoldDemand(
            counts=self._counts("decode", own),
            num_held=num_running + sum(report.num_active_requests for report in prefills),
            slots=int(_mean(self._slots(report) for report in decodes)),
            used_pages=sum(report.num_used_pages for report in decodes),
            pages=int(_mean(report.num_total_pages for report in decodes)),
        )

    def _slots(self, report: InstanceReport) -> int:
        """Requests that an instance takes, or fewer: that its steps are quick enough with."""
        times, step_s = report.decode_times, self._params.decode_step_s
        if times is None or step_s <= 0 or not report.num_running:
            return report.max_running
        request_kv_s = times.per_kv_token_s * report.kv_tokens / report.num_running
        if times.per_request_s + request_kv_s <= 0:  # a fit of too few steps says nothing
            return report.max_running
        slots = slots_within(step_s, times.base_s, times.per_request_s, request_kv_s)
        return min(slots, report.max_running)

    def _vision_demand(self, own: Own, now_s: float) -> FlowDemand:
        live = {report.instance_id for report in self._live("vision", own)}
        self._vision = {i: known for i, known in self._vision.items() if i in live} or self._vision
        known = [counters for i, counters in self._vision.items() if i in live]
        return FlowDemand(
            counts=self._counts("vision", own),
            arriving_per_s=self._arrivals.per_s("patches", now_s),
            backlog=sum(counters.queued_patches for counters in known),
            capacity_per_s=_mean(c.patches_per_s for c in known if c.patches_per_s > 0),
        )

    def _recipe(self, own: Own, now_s: float) -> FlowDemand:
        """An instance is one processor: what it does in a second of its time is its capacity."""
        counts = self._counts("recipe", own)
        tokens_per_s = self._arrivals.per_s("tokens", now_s)
        cpu_per_s = self._arrivals.per_s("cpu_ms", now_s) / 1e3
        is_telling = cpu_per_s > _TELLING_CPU_PER_S * max(1, counts.num_running)
        return FlowDemand(
            counts=counts,
            arriving_per_s=tokens_per_s,
            capacity_per_s=tokens_per_s / cpu_per_s if is_telling else 0.0,
        )

    def _backlog_tokens(self, prefills: list[InstanceReport], now_s: float) -> int:
        """Tokens pulled and not computed, plus the jobs still on the queue at their mean size.

        The stream counts jobs under way too, so those are subtracted.
        """
        routers = {report.instance_id for report in self._view.live("router", now_s)}
        self._queued_jobs = {r: n for r, n in self._queued_jobs.items() if r in routers}
        num_prefilling = sum(report.num_active_requests for report in prefills)
        num_waiting = max(0, max(self._queued_jobs.values(), default=0) - num_prefilling)
        submitted_per_s = self._arrivals.per_s("submitted", now_s)
        missed_per_s = self._arrivals.per_s("missed", now_s)
        tokens_per_job = missed_per_s / submitted_per_s if submitted_per_s > 0 else 0.0
        return sum(r.queued_tokens for r in prefills) + int(num_waiting * tokens_per_job)


def _mean(values: Iterable[float]) -> float:
    given = list(values)
    return sum(given) / len(given) if given else 0.0
