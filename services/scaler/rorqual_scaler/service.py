"""The scaler's loop: observe, decide, carry out, tell."""

import asyncio

from prometheus_client import Gauge
from rorqual_policy import (
    ScalingParams,
    ScalingState,
    ServiceBounds,
    Target,
    choose_drained,
    desired_counts,
)
from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.decision_log import log_decision
from rorqual_runtime.errors import ServingError, Unavailable
from rorqual_runtime.logs import get_logger
from rorqual_runtime.service import ServiceContext

from rorqual_scaler.convert import (
    GetDecisionRequest,
    LoadReport,
    ScaleDecision,
    decision_to_wire,
    reported_from_wire,
)
from rorqual_scaler.drivers import Driver
from rorqual_scaler.observer import FleetObserver, ObserverParams
from rorqual_scaler.settings import SERVICES, ScalerSettings

log = get_logger(__name__)


class ScalerService:
    """Decides instance counts, and has the driver follow."""

    def __init__(self, ctx: ServiceContext, driver: Driver, settings: ScalerSettings) -> None:
        self._ctx = ctx
        self._driver = driver
        self._settings = settings
        self._params = _params(settings)
        self._state = ScalingState()
        self._seq = 0
        self._loop: asyncio.Task[None] | None = None
        self.decision: ScaleDecision | None = None
        self._wanted = Gauge(
            "rorqual_scaler_wanted_instances",
            "instances that the load needs now; what an autoscaler outside may follow",
            ["target"],
            registry=ctx.metrics.registry,
        )
        params = ObserverParams(settings.window_s, settings.silent_s, settings.decode_step_s)
        self.observer = FleetObserver(ctx.clock, params)

    async def start(self) -> None:
        """Listen for one interval, then decide for ever."""
        bus = self._ctx.bus
        await self._driver.start()
        await bus.subscribe_loads(subjects.all_loads(), self.on_load)
        await bus.serve(
            subjects.scaler_get_decision(),
            GetDecisionRequest,
            ScaleDecision,
            self.on_get_decision,
            name="get_decision",
        )
        self._loop = self._ctx.track(self._decide_forever())
        self._ctx.mark_ready()

    async def drain(self, timeout_s: float) -> None:
        """No decisions any more, and nothing left of what only lives with this process."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])
        await self._driver.close(timeout_s)

    async def on_load(self, report: LoadReport, _context: MessageContext) -> None:
        self.observer.on_report(reported_from_wire(report))
        if report.service in SERVICES:
            self._driver.note_reporting(report.service, report.instance_id)

    async def on_get_decision(
        self, _request: GetDecisionRequest, _context: MessageContext
    ) -> ScaleDecision:
        """The last decision. Raises: Unavailable before the first."""
        if self.decision is None:
            raise Unavailable("the scaler has not decided yet")
        return self.decision

    async def decide(self) -> ScaleDecision:
        """One decision from the present view, carried out and published."""
        self._driver.stop_overdue()
        demand = self.observer.demand(self._driver.own)
        state, decision = desired_counts(self._state, demand, self._params)
        log_decision("scaling", (self._state, demand, self._params), (state, decision))
        self._state = state
        self._seq += 1
        self.decision = decision_to_wire(
            decision,
            driver=self._driver.name,
            incarnation=self._ctx.incarnation,
            seq=self._seq,
            decided_unix_s=self._ctx.clock.now_unix_s(),
        )
        for service, target in decision.targets.items():
            self._wanted.labels(service).set(target.num_desired)
            await self._carry_out(service, target)
        await self._publish(self.decision)
        return self.decision

    async def _decide_forever(self) -> None:
        """While the bus is away nobody can be seen, which says nothing about who is there."""
        while True:
            await self._ctx.clock.sleep(self._settings.interval_s)
            if self._ctx.bus.is_connected:
                await self.decide()
            else:
                self._state = ScalingState()

    async def _carry_out(self, service: str, target: Target) -> None:
        if target.num_change > 0:
            is_begun = await self._driver.grow(service, target)
        elif target.num_change < 0:
            is_begun = await self._shrink(service, target)
        else:
            return
        if is_begun:
            facts = {"num_change": target.num_change, "num_desired": target.num_desired}
            log.info("scaling", extra={"scaled_service": service, **facts, "reason": target.reason})

    async def _shrink(self, service: str, target: Target) -> bool:
        """Those with the least work go; each ends or hands over what it has."""
        removable = self._driver.removable(service, self.observer.live_ids(service))
        given = (
            self.observer.drain_candidates(service, removable, self._driver.own),
            -target.num_change,
        )
        choice = choose_drained(*given)
        log_decision("drain", given, choice)
        return bool(choice.instance_ids) and await self._driver.shrink(
            service, target, choice.instance_ids
        )

    async def _publish(self, decision: ScaleDecision) -> None:
        try:
            await self._ctx.bus.publish(subjects.scaler_decisions(), decision)
        except ServingError as error:
            log.debug("decision not published", extra={"reason": error.message})


def _params(settings: ScalerSettings) -> ScalingParams:
    return ScalingParams(
        services={service: ServiceBounds(*settings.bounds(service)) for service in SERVICES},
        up_utilisation=settings.up_utilisation,
        down_utilisation=settings.down_utilisation,
        redundancy=settings.redundancy,
        up_after_s=settings.up_after_s,
        down_after_s=settings.down_after_s,
        down_pause_s=settings.down_pause_s,
        down_share=settings.down_share,
        missing_after_s=settings.missing_after_s,
        start_s=settings.start_deadline_s,
        backlog_clear_s=settings.backlog_clear_s,
        assumed_per_s={
            "prefill": settings.default_prefill_tokens_per_s,
            "recipe": settings.default_recipe_tokens_per_s,
        },
    )
