"""Handlers of the recipe service: requests in and token batches in, events out."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from typing import Any

from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.cancelled import CancelledIds
from rorqual_runtime.errors import Cancelled, Internal, NotFound, ServingError
from rorqual_runtime.logs import get_logger
from rorqual_runtime.payload import get_payload
from rorqual_runtime.service import ServiceContext

from rorqual_recipe import convert
from rorqual_recipe.adoption import Adoption
from rorqual_recipe.convert import (
    CancelRequest,
    EncodeReply,
    EncodeRequest,
    ListModelsReply,
    ListModelsRequest,
    LoadReport,
    ProtocolError,
    RenderErrorRequest,
    RepeatTokensRequest,
    ResendEventsReply,
    ResendEventsRequest,
    TokenBatch,
)
from rorqual_recipe.decode_watch import DecodeWatch
from rorqual_recipe.event_log import EndedStreams
from rorqual_recipe.intake import TICKET_LEASE_S, Intake
from rorqual_recipe.listeners import Listeners
from rorqual_recipe.model import ServedModel
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols.base import ProtocolAdapter
from rorqual_recipe.protocols.direct import DirectProtocol
from rorqual_recipe.publishing import EventPublisher, Outbox
from rorqual_recipe.recovery import Recovery
from rorqual_recipe.response_memory import ResponseMemory
from rorqual_recipe.restarts import LOST_CODES, Restarts
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.stream_table import StreamTable
from rorqual_recipe.streams import Absorbed, Events, RequestStream

log = get_logger(__name__)

SWEEP_INTERVAL_S = 0.5
BEFORE_END_TIMEOUT_S = 1.0


class RecipeService:
    """Owns the stream state of every request it encoded, until the last event or the TTL."""

    def __init__(
        self,
        ctx: ServiceContext,
        settings: RecipeSettings,
        model: ServedModel,
        memory: ResponseMemory | None = None,
    ) -> None:
        self._ctx = ctx
        self._model = model
        self._intake = Intake(ctx, settings, model, memory)
        self._streams = StreamTable()
        self._num_tokens = 0
        self._ended = EndedStreams(
            ttl_s=settings.ended_stream_s, max_streams=settings.max_ended_streams
        )
        self._cancelled = CancelledIds()
        self._publisher = EventPublisher(ctx.bus)
        self._restarts = Restarts(ctx, self._streams, self._fail)
        on_lost = self._restarts.restart
        self._recovery = Recovery(ctx, settings, self._streams, self._on_recovered, on_lost)
        self._watch = DecodeWatch(ctx, self._streams, self._recovery, self._on_recovered, on_lost)
        self._adoption = Adoption(ctx, self._streams, self._recovery, self.on_tokens, on_lost)
        self._listeners = Listeners(
            ctx.bus, ctx.clock, self._streams, patience_s=settings.listener_patience_s
        )

    @property
    def num_active(self) -> int:
        """Streams that still await tokens."""
        return len(self._streams)

    async def start(self) -> None:
        """Subscribe and serve; encode last, so that all else is there for its streams."""
        bus, own_id = self._ctx.bus, self._ctx.instance_id
        await bus.subscribe(subjects.cancel(), CancelRequest, self.on_cancel)
        await bus.subscribe(subjects.recipe_tokens(own_id), TokenBatch, self.on_tokens)
        await bus.subscribe_loads(subjects.loads_of("gateway"), self.on_gateway_load)
        await bus.serve(
            subjects.recipe_resend(own_id),
            ResendEventsRequest,
            ResendEventsReply,
            self.on_resend,
            name="resend",
        )
        await bus.serve(
            subjects.recipe_models(),
            ListModelsRequest,
            ListModelsReply,
            self.on_models,
            name="models",
        )
        await bus.serve(
            subjects.recipe_render_error(),
            RenderErrorRequest,
            ProtocolError,
            self.on_render_error,
            name="render_error",
        )
        await bus.serve(
            subjects.recipe_take_over(own_id),
            EncodeRequest,
            EncodeReply,
            self.on_encode,
            name="take_over",
        )
        await bus.serve(
            subjects.recipe_encode(), EncodeRequest, EncodeReply, self.on_encode, name="encode"
        )
        bus.connection.on_reconnect(self.on_reconnect)
        self._ctx.report_load(self._fill_report)
        self._ctx.track(self._watch.run())
        self._ctx.track(self._sweep_for_ever())

    async def drain(self, timeout_s: float) -> None:
        """Return once no stream is left; the caller bounds the wait."""
        while self.num_active:
            await self._ctx.clock.sleep(0.05)

    async def on_encode(self, request: EncodeRequest, context: MessageContext) -> EncodeReply:
        """Body to generations, to a whole answer, or to an error in the caller's protocol."""
        protocol = convert.protocol_from_wire(request.protocol)
        try:
            body = await get_payload(self._ctx.tensors, request.body, keep=True)  # may be re-asked
            if isinstance(protocol, DirectProtocol):
                return await self._answer(request, body, protocol)
            return await self._begin(request, body, protocol)
        except RequestRefused as refusal:
            return convert.error_to_reply(protocol.render_refusal(refusal.problems))
        except ServingError as err:
            return convert.error_to_reply(protocol.render_error(err), err)

    async def _answer(
        self, request: EncodeRequest, body: bytes, protocol: DirectProtocol
    ) -> EncodeReply:
        status, payload = await self._intake.answer(
            body, protocol, resource=request.resource, tenant=request.tenant
        )
        return convert.answer_to_wire(status, payload)

    async def _begin(
        self, request: EncodeRequest, body: bytes, adapter: ProtocolAdapter
    ) -> EncodeReply:
        context = self._intake.context_of(request.request_id, request.tenant)
        if (known := self._reply_to(request)) is not None:
            return known
        encoded = await self._intake.encode(body, adapter, context)
        if (known := self._reply_to(request)) is not None:
            return known
        self._num_tokens += sum(map(len, encoded.prompts))
        taken_over = convert.take_over_from_wire(request)
        prompts = await self._intake.publish_prompts(encoded)
        if request.request_id in self._cancelled:
            self._intake.release(prompts)
            raise Cancelled()
        stream = self._intake.make_stream(
            encoded,
            adapter,
            request_id=request.request_id,
            gateway_id=request.gateway_id,
            tenant=request.tenant,
            deadline_unix_s=request.deadline_unix_s,
            received_unix_s=request.received_unix_s,
            prompts=list(prompts),
            source=convert.source_of(request, encoded, self._ctx.instance_id),
            taken_over=taken_over,
        )
        self._drop(request.request_id)
        self._streams.add(stream)
        self._listeners.attach(stream, request.gateway_id)
        if taken_over:
            held_prompt = max(map(len, encoded.prompts)) > self._ctx.tensors.max_inline_bytes
            await self._adoption.adopt(stream, taken_over, held_prompt=held_prompt)
            prompts = [convert.no_prompt()] * len(encoded.prompts)
        reply = convert.encoded_to_wire(request, encoded, prompts, self._ctx.instance_id)
        stream.reply = reply
        return reply

    def _reply_to(self, request: EncodeRequest) -> EncodeReply | None:
        """To a question that was asked before, also when that was only a moment ago: whichever
        reply its gateway takes, the stream it speaks of is here."""
        stream = self._streams.get(request.request_id)
        if stream is None or request.HasField("resume"):
            return None
        known: EncodeReply | None = stream.reply
        return known

    async def on_tokens(self, batch: TokenBatch, context: MessageContext) -> None:
        """Tokens of many streams; one event batch a gateway."""
        outbox: Outbox = defaultdict(list)
        self._watch.heard(batch.decode_id)
        for delta in batch.deltas:
            self._num_tokens += len(delta.token_ids)
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                self._absorb(stream, delta, batch.decode_id, batch.incarnation, outbox)
        await self._publisher.send(outbox)

    async def on_reconnect(self) -> None:
        """Tokens that came meanwhile went nowhere, maybe all of an answer and the word of who has
        it."""
        wanted = [self._ctx.instance_id, *self._adoption.lost_ids]
        try:
            await self._ctx.bus.publish(
                subjects.decode_repeat(), RepeatTokensRequest(recipe_ids=wanted)
            )
        except ServingError:
            log.info("decode is not asked to repeat: the bus is away again")

    async def on_cancel(self, request: CancelRequest, context: MessageContext) -> None:
        """Forget a request. A single choice's cancel is for decode only: we know it already."""
        if request.HasField("choice_index"):
            return
        self._cancelled.add(request.request_id)
        self._forget(request.request_id)

    async def on_gateway_load(self, report: LoadReport, context: MessageContext) -> None:
        """A gateway is alive, and so listens to its answers."""
        self._listeners.note_report(report.instance_id, report.incarnation)

    async def on_render_error(
        self, request: RenderErrorRequest, context: MessageContext
    ) -> ProtocolError:
        """An error from elsewhere in the caller's protocol."""
        protocol = convert.protocol_from_wire(request.protocol)
        error = convert.error_request_from_wire(request)
        stream = self._streams.get(request.request_id)
        rendered = stream.render_failure(error) if stream else protocol.render_error(error)
        self._forget(request.request_id)
        return convert.protocol_error_to_wire(rendered, error)

    async def on_resend(
        self, request: ResendEventsRequest, context: MessageContext
    ) -> ResendEventsReply:
        """Events again, from a number on; none when nothing new is there. Raises: NotFound.

        Whoever says so gets all further events, or does no more: whatever the answer is.
        """
        stream = self._streams.get(request.request_id)
        if stream is not None:
            self._listeners.asked_after(stream)
        if stream is not None and request.listener_id:
            change = self._listeners.leave if request.leaves else self._listeners.attach
            change(stream, request.listener_id)
        kept = stream.log if stream is not None else self._ended.get(request.request_id)
        events = kept.since(request.from_seq) if kept is not None else None
        if events is None:
            raise NotFound("the events of this request are gone")
        return convert.resent_to_wire(events, stream.gateway_id if stream else "")

    async def on_models(
        self, request: ListModelsRequest, context: MessageContext
    ) -> ListModelsReply:
        """What is served."""
        return convert.models_to_wire([self._model])

    def _absorb(
        self,
        stream: RequestStream,
        wire_delta: Any,
        decode_id: str,
        incarnation: int,
        outbox: Outbox,
    ) -> None:
        index = wire_delta.choice_index
        if index >= len(stream.choices) or stream.choices[index].is_finished:
            return
        order = stream.choices[index].order
        if wire_delta.run < order.run:
            self._restarts.fence(stream, index, decode_id)
            return
        absorbed = self._read(stream, wire_delta, decode_id, incarnation)
        if isinstance(absorbed, ServingError):
            is_current = wire_delta.run > order.run or order.decode_id in ("", decode_id)
            if is_current and absorbed.code in LOST_CODES:
                order.run = wire_delta.run  # the next start is behind this one
                self._restarts.restart(stream, index, absorbed)
            else:
                self._fail_into(stream, absorbed, outbox)
            return
        self._hand_out(stream, absorbed.events, outbox)
        if absorbed.has_gap:
            self._recovery.fetch_missed(stream, index)
        if absorbed.hit_stop:
            self._broadcast_cancel(
                convert.choice_cancel(stream.request_id, index, reason="stop_sequence")
            )
        if stream.is_finished:
            self._end(stream)

    def _read(
        self, stream: RequestStream, wire_delta: Any, decode_id: str, incarnation: int
    ) -> Absorbed | ServingError:
        """What a delta became, or why its request fails; the other streams go on either way."""
        now_s = self._ctx.clock.monotonic_s()
        try:
            return stream.absorb(convert.delta_from_wire(wire_delta), decode_id, incarnation, now_s)
        except ServingError as err:
            return err
        except Exception:
            log.exception("an answer can't be read", extra={"request_id": stream.request_id})
            return Internal()

    def _hand_out(self, stream: RequestStream, events: Sequence[Events], outbox: Outbox) -> None:
        """Send events; the last one waits for what has to be done before it."""
        for entry in events:
            wire = convert.events_to_wire(entry)
            first = stream.before_end() if entry.is_last and stream.before_end else None
            if first is not None:
                self._ctx.track(self._send_after(first, stream, entry, wire))
            else:
                stream.log.append(entry.seq, entry.num_bytes, wire)
                outbox[stream.gateway_id].append(wire)

    async def _send_after(
        self, first: Awaitable[None], stream: RequestStream, last: Events, wire: Any
    ) -> None:
        try:
            async with asyncio.timeout(BEFORE_END_TIMEOUT_S):
                await first
        except (ServingError, TimeoutError) as err:
            facts = {"request_id": stream.request_id}
            log.warning("an answer was not kept: %s", str(err) or "timeout", extra=facts)
        stream.log.append(last.seq, last.num_bytes, wire)
        await self._publisher.send({stream.gateway_id: [wire]})

    async def _on_recovered(self, stream: RequestStream, wire_delta: Any) -> None:
        outbox: Outbox = defaultdict(list)
        order = stream.choices[wire_delta.choice_index].order
        self._absorb(stream, wire_delta, order.decode_id, order.incarnation, outbox)
        await self._publisher.send(outbox)

    def _fail(self, stream: RequestStream, error: ServingError) -> None:
        outbox: Outbox = defaultdict(list)
        self._fail_into(stream, error, outbox)
        self._ctx.track(self._publisher.send(outbox))

    def _fail_into(self, stream: RequestStream, error: ServingError, outbox: Outbox) -> None:
        """End a request with an error and have every service let go of it."""
        facts = {"request_id": stream.request_id, "code": error.code.name}
        log.warning("generation failed: %s", error.message, extra=facts)
        rendered = stream.render_failure(error)
        seq = stream.take_event_seq()
        wire = convert.failure_to_wire(
            stream.request_id, seq, rendered, error, stream.usage, stream.take_over
        )
        stream.log.append(seq, len(rendered.body_json), wire)
        outbox[stream.gateway_id].append(wire)
        self._end(stream)
        self._broadcast_cancel(convert.request_cancel(stream.request_id, reason="error"))

    def _broadcast_cancel(self, request: CancelRequest) -> None:
        self._ctx.track(self._publisher.send_cancel(request))

    def _end(self, stream: RequestStream) -> None:
        """A stream is over; its events are kept for a while."""
        self._drop(stream.request_id)
        self._ended.add(stream.request_id, stream.log, self._ctx.clock.monotonic_s())

    def _forget(self, request_id: str) -> None:
        """Nobody wants this request any more."""
        self._drop(request_id)
        self._ended.remove(request_id)

    def _drop(self, request_id: str) -> None:
        stream = self._streams.remove(request_id)
        if stream is not None:
            self._intake.release(stream.prompts)

    def _fill_report(self, report: Any) -> None:
        report.num_active_requests = self.num_active
        convert.fill_load(report, self._model.token_cache, self._restarts.num_restarted)
        convert.fill_work(report, num_tokens=self._num_tokens, cpu_s=time.process_time())

    def _end_unheard(self) -> None:
        """Answers that nobody waits for; of a double only what is here ends."""
        for stream in self._listeners.abandoned():
            log.info("nobody listens any more", extra={"request_id": stream.request_id})
            self._forget(stream.request_id)
            self._broadcast_cancel(convert.request_cancel(stream.request_id, reason="client_gone"))
        for stream in self._listeners.unclaimed():
            log.info("another instance has this one", extra={"request_id": stream.request_id})
            self._forget(stream.request_id)

    async def _sweep_for_ever(self) -> None:
        next_renewal_s = 0.0
        while True:
            await self._ctx.clock.sleep(SWEEP_INTERVAL_S)
            now_s = self._ctx.clock.monotonic_s()
            for stream in self._streams.expired(now_s):
                log.info("stream expired", extra={"request_id": stream.request_id})
                self._forget(stream.request_id)
            self._end_unheard()
            self._ended.forget_expired(now_s)
            self._recovery.probe_stalled(now_s)
            await self._adoption.let_go()
            if now_s >= next_renewal_s:
                next_renewal_s = now_s + TICKET_LEASE_S / 3
                self._intake.renew(p for stream in self._streams for p in stream.prompts)
