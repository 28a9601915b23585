"""What the fleet does and is asked to do, from its load reports."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from rorqual_policy import (
    CounterSource,
    DemandWindow,
    FleetDemand,
    InstanceCounts,
    InstanceReport,
    LoadView,
    demand_per_s,
    observe_counter,
)
from rorqual_runtime.clock import Clock

from rorqual_scaler.convert import RouterCounters


@dataclass(frozen=True, slots=True)
class OwnInstances:
    """Instances of one service that this scaler started."""

    pending: dict[str, float]
    """Started and not yet seen reporting: id to the time by which it should."""
    stopping: Collection[str]
    """Told to stop: no capacity any more, whatever they still report."""


class FleetObserver:
    """Load reports in, `FleetDemand` out; owned by one event loop."""

    def __init__(self, clock: Clock, *, window_s: float, silent_s: float) -> None:
        self._clock = clock
        now_s = clock.monotonic_s()
        self._view = LoadView(silent_s)
        self._missed_tokens = DemandWindow(window_s, now_s)
        self._submitted = DemandWindow(window_s, now_s)
        self._queued_jobs: dict[str, int] = {}

    def on_report(self, report: InstanceReport, router: RouterCounters | None) -> None:
        """Take in a load report; `router` when it came from one."""
        now_s = self._clock.monotonic_s()
        self._view.observe(report, now_s)
        if router is None:
            return
        source = CounterSource(report.instance_id, report.incarnation)
        self._missed_tokens = observe_counter(
            self._missed_tokens, source, router.missed_tokens_total, now_s
        )
        self._submitted = observe_counter(self._submitted, source, router.submitted_total, now_s)
        self._queued_jobs[report.instance_id] = router.queued_jobs

    def demand(self, own: Callable[[str], OwnInstances]) -> FleetDemand:
        """The present demand and capacity, given what this scaler has started."""
        now_s = self._clock.monotonic_s()
        self._view.drop_silent(now_s)
        prefills = self._live("prefill", own("prefill"), now_s)
        decodes = self._live("decode", own("decode"), now_s)
        missed_per_s = demand_per_s(self._missed_tokens, now_s)
        num_prefilling = sum(report.num_active_requests for report in prefills)
        return FleetDemand(
            now_s=now_s,
            prefill=_counts(prefills, own("prefill")),
            decode=_counts(decodes, own("decode")),
            missed_tokens_per_s=missed_per_s,
            backlog_tokens=self._backlog_tokens(prefills, num_prefilling, now_s),
            prefill_tokens_per_s=_mean([r.tokens_per_s for r in prefills if r.tokens_per_s > 0]),
            num_decode_in_flight=num_prefilling + sum(r.num_running for r in decodes),
            decode_slots=int(_mean([r.max_running for r in decodes])),
            decode_used_pages=sum(r.num_used_pages for r in decodes),
            decode_pages=int(_mean([r.num_total_pages for r in decodes])),
        )

    def _live(self, service: str, own: OwnInstances, now_s: float) -> list[InstanceReport]:
        return [
            report
            for report in self._view.live(service, now_s)
            if report.instance_id not in own.stopping
        ]

    def _backlog_tokens(
        self, prefills: list[InstanceReport], num_prefilling: int, now_s: float
    ) -> int:
        """Tokens pulled and not computed, plus the jobs still on the queue at their mean size.

        The stream counts jobs under way too, so those are subtracted.
        """
        routers = {report.instance_id for report in self._view.live("router", now_s)}
        self._queued_jobs = {r: n for r, n in self._queued_jobs.items() if r in routers}
        num_waiting = max(0, max(self._queued_jobs.values(), default=0) - num_prefilling)
        submitted_per_s = demand_per_s(self._submitted, now_s)
        missed_per_s = demand_per_s(self._missed_tokens, now_s)
        tokens_per_job = missed_per_s / submitted_per_s if submitted_per_s > 0 else 0.0
        return sum(r.queued_tokens for r in prefills) + int(num_waiting * tokens_per_job)


def _counts(reports: list[InstanceReport], own: OwnInstances) -> InstanceCounts:
    return InstanceCounts(len(reports), tuple(sorted(own.pending.values())))


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
