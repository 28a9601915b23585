"""Handlers of the recipe service: requests in and token batches in, events out."""

import asyncio
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.cancelled import CancelledIds
from rorqual_runtime.errors import Cancelled, NoCapacity, ServingError, Unavailable
from rorqual_runtime.payload import get_payload, put_payload
from rorqual_runtime.service import ServiceContext
from rorqual_runtime.telemetry import get_logger

from rorqual_recipe import convert
from rorqual_recipe.convert import (
    CancelRequest,
    EncodeReply,
    EncodeRequest,
    ListModelsReply,
    ListModelsRequest,
    ProtocolError,
    RenderErrorRequest,
    TokenBatch,
)
from rorqual_recipe.encode import EncodedRequest, encode_request
from rorqual_recipe.model import ServedModel
from rorqual_recipe.output.choice import ChoiceText
from rorqual_recipe.output.sequence import DeltaOrder, TooManyEarly
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols.base import AnswerFacts, ProtocolAdapter
from rorqual_recipe.publishing import EventPublisher
from rorqual_recipe.recovery import Recovery
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.streams import Choice, RequestStream, StreamTable

log = get_logger(__name__)

SWEEP_INTERVAL_S = 0.5
TICKET_LEASE_S = 30.0
DEADLINE_GRACE_S = 5.0


class RecipeService:
    """Owns the stream state of every request it encoded, until the last event or the TTL."""

    def __init__(self, ctx: ServiceContext, settings: RecipeSettings, model: ServedModel) -> None:
        self._ctx = ctx
        self._settings = settings
        self._model = model
        self._streams = StreamTable()
        self._cancelled = CancelledIds()
        self._publisher = EventPublisher(ctx.bus)
        self._recovery = Recovery(ctx, settings, self._streams, self._on_recovered, self.fail)
        self._executor = ThreadPoolExecutor(settings.encode_threads, "encode")
        self._num_waiting_encodes = 0

    @property
    def num_active(self) -> int:
        """Streams that still await tokens."""
        return len(self._streams)

    async def start(self) -> None:
        """Subscribe and serve."""
        bus = self._ctx.bus
        await bus.subscribe(subjects.cancel(), CancelRequest, self.on_cancel)
        await bus.subscribe(
            subjects.recipe_tokens(self._ctx.instance_id), TokenBatch, self.on_tokens
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
            subjects.recipe_encode(), EncodeRequest, EncodeReply, self.on_encode, name="encode"
        )
        self._ctx.report_load(self._fill_report)
        self._ctx.track(self._sweep_for_ever())

    async def drain(self, timeout_s: float) -> None:
        """Return once no stream is left; the caller bounds the wait."""
        while self.num_active:
            await self._ctx.clock.sleep(0.05)

    async def on_encode(self, request: EncodeRequest, context: MessageContext) -> EncodeReply:
        """Body to generations, or to an error in the caller's protocol."""
        adapter = convert.adapter_from_wire(request.protocol)
        try:
            body = await get_payload(self._ctx.tensors, request.body)
            encoded = await self._encode(body, adapter)
            prompts = await self._publish_prompts(encoded)
        except RequestRefused as refusal:
            return convert.error_to_reply(adapter.render_refusal(refusal.problems))
        except ServingError as err:
            return convert.error_to_reply(adapter.render_error(err), err)
        tickets = [prompt.ticket for prompt in prompts if prompt.HasField("ticket")]
        if request.request_id in self._cancelled:
            self._release(tickets)
            return convert.error_to_reply(adapter.render_error(Cancelled()), Cancelled())
        self._streams.add(self._make_stream(request, encoded, adapter, tickets))
        return convert.encoded_to_wire(request, encoded, prompts, self._ctx.instance_id)

    async def on_tokens(self, batch: TokenBatch, context: MessageContext) -> None:
        """Tokens of many streams; one event batch a gateway."""
        outbox: dict[str, list[Any]] = defaultdict(list)
        for delta in batch.deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                self._absorb(stream, delta, batch.decode_id, batch.incarnation, outbox)
        await self._publisher.send(outbox)

    async def on_cancel(self, request: CancelRequest, context: MessageContext) -> None:
        """Forget a request. A single choice's cancel is for decode only: we know it already."""
        if request.HasField("choice_index"):
            return
        self._cancelled.add(request.request_id)
        self._forget(request.request_id)

    async def on_render_error(
        self, request: RenderErrorRequest, context: MessageContext
    ) -> ProtocolError:
        """An error from elsewhere in the caller's protocol."""
        adapter = convert.adapter_from_wire(request.protocol)
        error = convert.error_request_from_wire(request)
        self._forget(request.request_id)
        return convert.protocol_error_to_wire(adapter.render_error(error), error)

    async def on_models(
        self, request: ListModelsRequest, context: MessageContext
    ) -> ListModelsReply:
        """What is served."""
        return convert.models_to_wire([self._model])

    def fail(self, stream: RequestStream, error: ServingError) -> None:
        """End a request with an error and let every service forget it."""
        outbox: dict[str, list[Any]] = defaultdict(list)
        self._fail_into(stream, error, outbox)
        self._ctx.track(self._publisher.send(outbox))

    async def _encode(self, body: bytes, adapter: ProtocolAdapter) -> EncodedRequest:
        def work() -> EncodedRequest:
            return encode_request(
                body,
                adapter,
                self._model,
                default_max_tokens=self._settings.default_max_tokens,
                max_choices=self._settings.max_choices,
            )

        if len(body) <= self._settings.inline_encode_bytes:
            return work()
        if self._num_waiting_encodes >= self._settings.max_waiting_encodes:
            raise NoCapacity("too many long prompts are waiting to be encoded")
        self._num_waiting_encodes += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._num_waiting_encodes -= 1

    async def _publish_prompts(self, encoded: EncodedRequest) -> list[Any]:
        """A payload a choice: whoever reads a ticket may release it."""
        prompts: list[Any] = []
        try:
            for _ in range(encoded.parsed.num_choices):
                prompts.append(
                    await put_payload(self._ctx.tensors, encoded.prompt, lease_s=TICKET_LEASE_S)
                )
        except BaseException:
            self._release([prompt.ticket for prompt in prompts if prompt.HasField("ticket")])
            raise
        return prompts

    def _make_stream(
        self,
        request: EncodeRequest,
        encoded: EncodedRequest,
        adapter: ProtocolAdapter,
        tickets: list[Any],
    ) -> RequestStream:
        parsed, clock, model = encoded.parsed, self._ctx.clock, self._model
        facts = AnswerFacts(
            request_id=request.request_id,
            model=model.model_id,
            created_unix_s=int(clock.now_unix_s()),
            system_fingerprint=f"fp_{model.fingerprint[:12]}" if model.fingerprint else None,
            num_choices=parsed.num_choices,
            include_usage=parsed.include_usage,
            logprobs=parsed.sampling.logprobs,
            vocabulary=model.vocabulary,
        )
        choices = [
            Choice(
                ChoiceText(model.vocabulary, parsed.stop, logprobs=parsed.sampling.logprobs),
                DeltaOrder(self._settings.max_early_deltas),
                last_news_s=clock.monotonic_s(),
            )
            for _ in range(parsed.num_choices)
        ]
        return RequestStream(
            request_id=request.request_id,
            gateway_id=request.gateway_id,
            adapter=adapter,
            writer=adapter.make_writer(facts, stream=parsed.stream),
            choices=choices,
            num_prompt_tokens=encoded.num_prompt_tokens,
            expires_s=clock.monotonic_s() + self._lifetime_s(request.deadline_unix_s),
            prompt_tickets=tickets,
        )

    def _lifetime_s(self, deadline_unix_s: float) -> float:
        if not deadline_unix_s:
            return self._settings.stream_ttl_s
        left_s = deadline_unix_s - self._ctx.clock.now_unix_s()
        return min(self._settings.stream_ttl_s, max(left_s, 0.0) + DEADLINE_GRACE_S)

    def _absorb(
        self,
        stream: RequestStream,
        wire_delta: Any,
        decode_id: str,
        incarnation: int,
        outbox: dict[str, list[Any]],
    ) -> None:
        if wire_delta.choice_index >= len(stream.choices):
            return
        if stream.choices[wire_delta.choice_index].is_finished:
            return
        try:
            delta = convert.delta_from_wire(wire_delta)
            absorbed = stream.absorb(delta, decode_id, incarnation, self._ctx.clock.monotonic_s())
        except TooManyEarly:
            self._fail_into(stream, Unavailable("tokens were lost on the way"), outbox)
            return
        except ServingError as err:
            self._fail_into(stream, err, outbox)
            return
        if absorbed.events is not None:
            outbox[stream.gateway_id].append(convert.events_to_wire(absorbed.events))
        if absorbed.has_gap:
            self._recovery.fetch_missed(stream, delta.choice_index)
        if absorbed.hit_stop:
            self._cancel_generation(stream, delta.choice_index)
        if stream.is_finished:
            self._forget(stream.request_id)

    async def _on_recovered(self, stream: RequestStream, wire_delta: Any) -> None:
        outbox: dict[str, list[Any]] = defaultdict(list)
        order = stream.choices[wire_delta.choice_index].order
        self._absorb(stream, wire_delta, order.decode_id, order.incarnation, outbox)
        await self._publisher.send(outbox)

    def _fail_into(
        self, stream: RequestStream, error: ServingError, outbox: dict[str, list[Any]]
    ) -> None:
        log.warning(
            "generation failed: %s",
            error.message,
            extra={"request_id": stream.request_id, "code": error.code.name},
        )
        self._forget(stream.request_id)
        rendered = stream.adapter.render_error(error)
        wire = convert.failure_to_wire(
            stream.request_id, stream.take_event_seq(), rendered, error, stream.usage
        )
        outbox[stream.gateway_id].append(wire)
        self._broadcast_cancel(CancelRequest(request_id=stream.request_id, reason="error"))

    def _cancel_generation(self, stream: RequestStream, choice_index: int) -> None:
        self._broadcast_cancel(
            CancelRequest(
                request_id=stream.request_id, reason="stop_sequence", choice_index=choice_index
            )
        )

    def _broadcast_cancel(self, request: CancelRequest) -> None:
        self._ctx.track(self._publisher.send_cancel(request))

    def _forget(self, request_id: str) -> None:
        stream = self._streams.remove(request_id)
        if stream is not None:
            self._release(stream.prompt_tickets)

    def _release(self, tickets: list[Any]) -> None:
        for ticket in tickets:
            self._ctx.tensors.release(ticket)
        tickets.clear()

    def _fill_report(self, report: Any) -> None:
        report.num_active_requests = self.num_active

    async def _sweep_for_ever(self) -> None:
        next_renewal_s = 0.0
        while True:
            await self._ctx.clock.sleep(SWEEP_INTERVAL_S)
            now_s = self._ctx.clock.monotonic_s()
            for stream in self._streams.expired(now_s):
                log.info("stream expired", extra={"request_id": stream.request_id})
                self._forget(stream.request_id)
            self._recovery.probe_stalled(now_s)
            if now_s >= next_renewal_s:
                next_renewal_s = now_s + TICKET_LEASE_S / 3
                self._renew_tickets()

    def _renew_tickets(self) -> None:
        """Prompts stay readable while their streams live; a ticket its reader released is gone."""
        for stream in self._streams:
            kept = [ticket for ticket in stream.prompt_tickets if self._renews(ticket)]
            stream.prompt_tickets[:] = kept

    def _renews(self, ticket: Any) -> bool:
        try:
            self._ctx.tensors.renew(ticket, TICKET_LEASE_S)
        except ServingError:
            return False
        return True
