"""The gateway's side of the bus: requests out, events in."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from zlib import crc32

from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.errors import NotFound, ServingError, Unavailable
from rorqual_runtime.logs import get_logger
from rorqual_runtime.payload import free_payload, get_payload, put_payload
from rorqual_runtime.redis_link import RedisLink
from rorqual_runtime.service import ServiceContext

from rorqual_gateway import convert
from rorqual_gateway.admission import Admission, BodyBudget
from rorqual_gateway.callers import Callers
from rorqual_gateway.convert import (
    CancelRequest,
    DirectAnswer,
    EncodedRequest,
    EncodeReply,
    EncodeRequest,
    EventBatch,
    ListModelsReply,
    ListModelsRequest,
    LoadReport,
    Model,
    ProtocolError,
    ResendEventsReply,
    ResendEventsRequest,
    Resent,
    Resume,
    ScaleDecision,
    SubmitReply,
)
from rorqual_gateway.endpoints import Endpoint
from rorqual_gateway.errors import HttpError
from rorqual_gateway.kept_answers import KeptAnswers
from rorqual_gateway.keys import KeyRing, parse_api_keys
from rorqual_gateway.metrics import GatewayMetrics
from rorqual_gateway.quota_gate import QuotaGate
from rorqual_gateway.readiness import FleetView
from rorqual_gateway.settings import GatewaySettings
from rorqual_gateway.sinks import EventSink, Patience, SinkTable
from rorqual_gateway.stored_keys import StoredKeys

log = get_logger(__name__)

MAX_DECISIONS = 100
RENDER_TIMEOUT_S = 1.0
MODELS_TIMEOUT_S = 2.0
RESEND_TIMEOUT_S = 1.0
RESEND_AGAIN_S = 0.3
"""Half of what we ask an instance that was cut off goes where it was, until the broker notices."""
LEAVE_BUDGET_S, LEAVE_PAUSE_S = 30.0, 1.0
LAST_WORDS_S = 1.0
"""Of a drain's time: answers that are not complete by then end with an error instead of silence."""


class GatewayService:
    """Talks to recipe and router for the HTTP side, and hands it the events that come back."""

    def __init__(self, ctx: ServiceContext, link: RedisLink, settings: GatewaySettings) -> None:
        self.settings = settings
        self.clock = ctx.clock
        self.tracer = ctx.tracer
        self.admission = Admission(settings.max_concurrent_requests)
        self.kept_bodies = BodyBudget(settings.max_kept_body_bytes)
        self.metrics = GatewayMetrics(ctx.metrics.registry)
        stored = StoredKeys(
            link, ctx.clock, fresh_s=settings.key_fresh_s, stale_s=settings.key_stale_s
        )
        ring = KeyRing(parse_api_keys(settings.api_keys))
        self.callers = Callers(ring, stored if settings.stored_keys else None)
        self.kept_answers = KeptAnswers(
            link,
            ctx.clock,
            self._is_alive,
            ttl_s=settings.kept_answer_s,
            max_bytes=settings.max_kept_answer_bytes,
        )
        self.quotas = QuotaGate(link, self.metrics, ctx.track, lease_s=settings.request_timeout_s)
        self.time_is_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when answers under way have to end."""
        self._ctx = ctx
        self._started_s = ctx.clock.monotonic_s()
        self._link = link
        self._sinks = SinkTable(ctx.clock)
        self._patience = Patience(
            settings.max_stream_buffer_bytes, settings.slow_client_s, settings.max_answer_bytes
        )
        self.decisions: deque[ScaleDecision] = deque(maxlen=MAX_DECISIONS)
        self.fleet = FleetView(ctx.clock, stale_after_s=settings.stale_report_s)

    @property
    def instance_id(self) -> str:
        """This gateway's name in the fleet."""
        return self._ctx.instance_id

    @property
    def life(self) -> str:
        """This process's name: another one every time it starts."""
        return f"{self._ctx.instance_id}/{self._ctx.incarnation}"

    @property
    def traces_dir(self) -> Path:
        """Where the services of this machine write their spans when no collector is set."""
        return self._ctx.settings.home / "traces"

    @property
    def is_settled(self) -> bool:
        """Whether the broker can be reached, and others have had the time to reach it, too."""
        return self._ctx.bus.is_settled

    async def start(self) -> None:
        """Subscribe to this gateway's events and to everybody's load reports."""
        bus = self._ctx.bus
        events_subject = subjects.gateway_events(self._ctx.instance_id)
        await bus.subscribe(events_subject, EventBatch, self.on_events)
        await bus.subscribe_loads(subjects.all_loads(), self.on_load)
        await bus.subscribe(subjects.scaler_decisions(), ScaleDecision, self.on_decision)
        self._ctx.report_load(self._fill_report)
        await self._link.connect()
        self._ctx.track(self._link.keep_up(self.quotas.settle_owed))

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests; return once none is under way, those that take too long broken off.
        The caller bounds the wait."""
        self.admission.draining = True
        last_words_s = self.clock.monotonic_s() + timeout_s - LAST_WORDS_S
        while self.admission.num_active:
            if self.clock.monotonic_s() >= last_words_s and not self.time_is_up.done():
                self.time_is_up.set_result(None)
            await self.clock.sleep(0.05)

    async def on_events(self, batch: EventBatch, context: MessageContext) -> None:
        """Hand each event to the request that waits for it; the rest belongs to ended ones."""
        for request_id, event in convert.events_from_wire(batch):
            sink = self._sinks.get(request_id)
            if sink is not None:
                sink.push(event)

    async def on_load(self, report: LoadReport, context: MessageContext) -> None:
        """Somebody is there."""
        self.fleet.note(report)

    async def on_decision(self, decision: ScaleDecision, context: MessageContext) -> None:
        """The scaler has decided, and why; a repetition takes the last one's place."""
        if self.decisions and _counts(self.decisions[-1]) == _counts(decision):
            self.decisions.pop()
        self.decisions.append(decision)

    def open_sink(self, request_id: str) -> AbstractContextManager[EventSink]:
        """Where the request's events will arrive; open it before `encode`."""
        return self._sinks.open(request_id, self._patience)

    async def encode(
        self,
        request_id: str,
        endpoint: Endpoint,
        body: bytes,
        *,
        resource: str,
        tenant: str,
        received_unix_s: float,
        deadline_unix_s: float,
        resume: Resume | None = None,
        lost_id: str = "",
    ) -> EncodedRequest | DirectAnswer:
        """Have recipe read a body; to resume an answer, an instance that is known to be alive.

        lost_id: the one that is not.
        Raises: RequestFailed, ServingError.
        """
        settings = self.settings
        timeout_s = settings.take_over_timeout_s if resume else settings.encode_timeout_s
        lease_s = timeout_s + self._ctx.bus.outage_s
        payload = await put_payload(self._ctx.tensors, body, lease_s=lease_s)
        request = convert.encode_request(
            request_id,
            endpoint,
            payload,
            resource=resource,
            tenant=tenant,
            gateway_id=self._ctx.instance_id,
            received_unix_s=received_unix_s,
            deadline_unix_s=deadline_unix_s,
            resume=resume,
        )
        try:
            reply = await self._ctx.bus.request(
                self._successor(request, lost_id) if resume else subjects.recipe_encode(),
                request,
                EncodeReply,
                timeout_s=timeout_s,
                absent_timeout_s=0.0 if resume else settings.absent_timeout_s,
                outlasts_outages=resume is None,
                again_s=None if resume else settings.ask_again_s,
            )
        finally:
            free_payload(self._ctx.tensors, payload)  # recipe may never have read it
        return convert.encoded_from_wire(reply)

    def _successor(self, request: EncodeRequest, lost_id: str) -> str:
        """Who goes on: one of those that are alive, another one at every attempt.

        Raises: Unavailable when there is none.
        """
        alive = self.fleet.live("recipe")
        alive = [recipe_id for recipe_id in alive if recipe_id != lost_id] or alive
        if not alive:
            raise Unavailable("no recipe instance is there")
        turn = crc32(request.request_id.encode()) + request.resume.take_over
        return subjects.recipe_take_over(alive[turn % len(alive)])

    async def read_answer(self, answer: DirectAnswer) -> bytes:
        """The body of an answer without a generation. Raises: ServingError."""
        return await get_payload(
            self._ctx.tensors, answer.body, max_bytes=self.settings.max_answer_bytes
        )

    async def submit(self, encoded: EncodedRequest) -> None:
        """Hand the generations to router. Raises: ServingError."""
        for request in encoded.submits:
            await self._ctx.bus.request(
                subjects.router_submit(),
                request,
                SubmitReply,
                timeout_s=self.settings.submit_timeout_s,
                absent_timeout_s=self.settings.absent_timeout_s,
                outlasts_outages=True,
                again_s=self.settings.ask_again_s,
            )

    async def resend(
        self, recipe_id: str, request_id: str, from_seq: int, *, listens: bool = False
    ) -> Resent:
        """Events that recipe has sent already, from a number on. Raises: ServingError.

        listens: those to come shall come here, wherever they went before.
        """
        listener_id = self.instance_id if listens else ""
        request = convert.resend_request(request_id, from_seq, listener_id=listener_id)
        return convert.resent_from_wire(await self._ask_recipe(recipe_id, request))

    async def stop_listening(self, recipe_id: str, request_id: str, sink: EventSink) -> None:
        """The client of a request is gone and may come back: recipe lets it go on for a while.

        sink: the one it had; while it is back here with another one, nothing is said. Nobody is
        told to let go: another gateway may be serving the answer by now.
        """
        request = convert.resend_request(
            request_id, convert.NO_EVENT, listener_id=self.instance_id, leaves=True
        )
        until_s = self.clock.monotonic_s() + LEAVE_BUDGET_S
        while not self.is_back(request_id, sink):
            try:
                await self._ask_recipe(recipe_id, request)
                return
            except NotFound:
                return
            except ServingError as err:
                if self.clock.monotonic_s() > until_s:
                    facts = {"request_id": request_id, "recipe_id": recipe_id}
                    log.warning("recipe can't be told who left: %s", err.message, extra=facts)
                    return
            await self.clock.sleep(LEAVE_PAUSE_S)

    def is_back(self, request_id: str, sink: EventSink) -> bool:
        """The client that had this sink has another one here."""
        return self._sinks.get(request_id) not in (None, sink)

    async def _ask_recipe(self, recipe_id: str, request: ResendEventsRequest) -> ResendEventsReply:
        return await self._ctx.bus.request(
            subjects.recipe_resend(recipe_id),
            request,
            ResendEventsReply,
            timeout_s=RESEND_TIMEOUT_S,
            absent_timeout_s=0.0,
            again_s=RESEND_AGAIN_S,
        )

    async def render_error(
        self, request_id: str, endpoint: Endpoint, error: ServingError
    ) -> HttpError:
        """The error as the protocol wants it; our own rendering when recipe can't be asked."""
        if not self._ctx.bus.is_connected:
            return endpoint.dialect.render_error(error)
        try:
            reply = await self._ctx.bus.request(
                subjects.recipe_render_error(),
                convert.render_error_request(request_id, endpoint, error),
                ProtocolError,
                timeout_s=RENDER_TIMEOUT_S,
                absent_timeout_s=0.0,
            )
        except ServingError:
            return endpoint.dialect.render_error(error)
        return convert.error_from_wire(reply)

    async def cancel(self, request_id: str, reason: str) -> None:
        """Tell everybody to let go of a request."""
        with contextlib.suppress(ServingError):
            await self._ctx.bus.publish(
                subjects.cancel(), CancelRequest(request_id=request_id, reason=reason)
            )

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it in the background: for callers that are being cancelled themselves."""
        self._ctx.track(work)

    async def models(self) -> list[Model]:
        """What is served. Raises: ServingError."""
        reply = await self._ctx.bus.request(
            subjects.recipe_models(),
            ListModelsRequest(),
            ListModelsReply,
            timeout_s=MODELS_TIMEOUT_S,
            outlasts_outages=True,
        )
        return convert.models_from_wire(reply)

    def missing_services(self) -> list[str]:
        """What keeps this fleet from serving; `nats` when the broker is away."""
        missing = self.fleet.missing(self.settings.required_service_names)
        return missing if self._ctx.bus.is_connected else ["nats", *missing]

    def _is_alive(self, life: str) -> bool:
        """Of a gateway; none is judged before all have had the time to report."""
        if self.clock.monotonic_s() - self._started_s < self.settings.stale_report_s:
            return True
        return life == self.life or any(life == _life(r) for _, r in self.fleet.instances())

    def _fill_report(self, report: LoadReport) -> None:
        report.num_active_requests = self.admission.num_active


def _life(report: LoadReport) -> str:
    return f"{report.instance_id}/{report.incarnation}"


def _counts(decision: ScaleDecision) -> list[tuple[str, int, int, int]]:
    return [(t.service, t.num_running, t.num_desired, t.num_change) for t in decision.targets]
