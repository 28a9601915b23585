"""Handlers of the router: where work runs."""

import asyncio

from opentelemetry import trace
from rorqual_policy import (
    BLOCK_TOKENS,
    PlacementDecision,
    PlacementOutcome,
    PlacementParams,
)
from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.cancelled import CancelledIds, Phase, cancel_target
from rorqual_runtime.errors import Cancelled, ContextTooLong, NoCapacity, ServingError
from rorqual_runtime.logs import bind_request_id
from rorqual_runtime.queue import WorkQueue
from rorqual_runtime.service import ServiceContext
from rorqual_runtime.under_way import UnderWay

from rorqual_router.convert import (
    CancelRequest,
    LoadReport,
    PlaceReply,
    PlaceRequest,
    RouterFacts,
    SubmitReply,
    SubmitRequest,
    fill_router_load,
    placement_request_from_wire,
    placement_to_wire,
    report_from_wire,
    submission_from_wire,
    submitted_to_wire,
)
from rorqual_router.fleet import Fleet
from rorqual_router.line_keeper import LineKeeper
from rorqual_router.queue_gauge import QueueGauge
from rorqual_router.settings import RouterSettings
from rorqual_router.submit import Submitter
from rorqual_router.tenant_counts import TenantCounts, largest

PRUNE_INTERVAL_S = 1.0


class RouterService:
    """Submissions in, prefill jobs out; decode placements on request."""

    def __init__(self, ctx: ServiceContext, queue: WorkQueue, settings: RouterSettings) -> None:
        self._ctx = ctx
        self._cancelled = CancelledIds(ctx.clock)
        self._under_way = UnderWay(self._cancelled)
        self.gauge = QueueGauge(queue.depth, settings.depth_interval_s)
        self.fleet = Fleet(
            ctx.clock,
            _placement_params(settings),
            silent_s=settings.silent_s,
            settle_s=settings.settle_s,
            salt=ctx.instance_id,
        )
        self.tenants = TenantCounts(ctx.clock)
        self.submitter = Submitter(
            ctx.bus,
            ctx.tensors,
            queue,
            self.gauge,
            self.tenants,
            self.fleet,
            self._cancelled,
            ctx.clock,
            settings,
        )
        self.line = LineKeeper(
            ctx.bus,
            queue,
            self._cancelled,
            ctx.clock,
            settings,
            identity=(ctx.instance_id, ctx.incarnation),
            leads=self._leads,
        )
        self._knows_peers = False

    async def start(self) -> None:
        """Listen, then serve, then say so."""
        bus = self._ctx.bus
        await bus.subscribe_loads(subjects.all_loads(), self.on_load)
        await bus.subscribe(subjects.cancel(), CancelRequest, self.on_cancel)
        await self.gauge.refresh()
        self._ctx.track(self.gauge.run())
        self._ctx.track(self._prune())
        self._ctx.track(self.line.run())
        self._ctx.report_load(self._fill_load)
        await bus.serve(
            subjects.router_submit(), SubmitRequest, SubmitReply, self.on_submit, name="submit"
        )
        await bus.serve(
            subjects.router_place(), PlaceRequest, PlaceReply, self.on_place, name="place"
        )
        self._ctx.mark_ready()

    async def drain(self, timeout_s: float) -> None:
        """Return once no submission is under way and the line is another router's."""
        await self._under_way.wait_idle()
        await self.line.close()

    async def on_submit(self, request: SubmitRequest, _context: MessageContext) -> SubmitReply:
        submission = submission_from_wire(request)
        with bind_request_id(submission.request_id):
            work = self.submitter.submit(submission)
            queued = await self._under_way.run(submission.request_id, work)
        return submitted_to_wire(queued.bucket, queued.num_cached_tokens)

    async def on_place(self, request: PlaceRequest, _context: MessageContext) -> PlaceReply:
        if request.request_id in self._cancelled:
            raise Cancelled()
        placement = placement_request_from_wire(request)
        decision = self.fleet.place(placement)
        trace.get_current_span().set_attributes(
            {"rorqual.decode_id": decision.instance_id or "", "rorqual.reason": decision.reason}
        )
        if decision.instance_id is None:
            raise _no_place(decision, placement.num_context_tokens, self.fleet)
        return placement_to_wire(decision)

    async def on_load(self, report: LoadReport, _context: MessageContext) -> None:
        self.fleet.on_report(report_from_wire(report))
        if report.instance_id == self._ctx.instance_id and report.seq > 1:
            self._knows_peers = True  # everybody has reported since this one came
        if report.HasField("router"):
            self.tenants.hear(report.instance_id, dict(report.router.waiting_by_tenant))

    async def on_cancel(self, request: CancelRequest, _context: MessageContext) -> None:
        request_id, choice_index = cancel_target(request)
        if choice_index is None:
            self._cancelled.num_by_phase[Phase.PREPARING] += self._under_way.cancel(request_id)
        else:
            self._cancelled.add(request_id, choice_index)
        self.line.cancel(request_id, choice_index)

    def _leads(self) -> bool:
        """Whether the waiting line is left to this router: the oldest one keeps it."""
        who = self._ctx.instance_id, self._ctx.incarnation
        return self._knows_peers and not self.fleet.has_elder("router", *who)

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_INTERVAL_S)
            self.fleet.drop_silent()

    def _fill_load(self, report: LoadReport) -> None:
        counters = self.submitter.counters
        report.num_active_requests = len(self._under_way)
        report.cancelled_total.update(self._cancelled.num_by_phase)
        fill_router_load(
            report,
            RouterFacts(
                submitted_total=counters.submitted,
                missed_tokens_total=counters.missed_tokens,
                queued_jobs=self.gauge.num_jobs,
                waiting_s=self.line.waiting_s,
                num_waiting=self.line.num_waiting,
                num_prefill=self.fleet.num_live("prefill"),
                waiting_by_tenant=largest(self.line.num_by_tenant()),
                waiting_by_bucket=self.line.num_by_bucket(),
                matches_total=self.submitter.match_times.num_asked,
                match_s_total=self.submitter.match_times.total_s,
            ),
        )


def _no_place(decision: PlacementDecision, num_tokens: int, fleet: Fleet) -> ServingError:
    if decision.outcome is PlacementOutcome.TOO_LARGE:
        return ContextTooLong(num_tokens, fleet.largest_decode_pages() * BLOCK_TOKENS)
    return NoCapacity(decision.reason)


def _placement_params(settings: RouterSettings) -> PlacementParams:
    return PlacementParams(
        base_s=settings.step_base_s,
        per_request_s=settings.step_per_request_s,
        per_kv_token_s=settings.step_per_kv_token_s,
        reserved_new_tokens=settings.reserved_new_tokens,
    )
