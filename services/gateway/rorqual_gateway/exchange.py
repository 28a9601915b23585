"""One chat request from its first byte to its last, whatever happens in between."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from rorqual_runtime.context import inherit_deadline
from rorqual_runtime.errors import DeadlineExceeded, Internal, ServingError
from rorqual_runtime.logs import bind_request_id, get_logger
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rorqual_gateway import http_io
from rorqual_gateway.convert import EncodedRequest
from rorqual_gateway.errors import HttpError, RequestFailed, render_error
from rorqual_gateway.feed import EventFeed
from rorqual_gateway.http_io import ClientGone
from rorqual_gateway.metrics import RequestMetrics
from rorqual_gateway.request_ids import RequestIds, name_request
from rorqual_gateway.service import GatewayService
from rorqual_gateway.sinks import Event, EventSink

log = get_logger(__name__)

KEEPALIVE = b": keep-alive\n\n"
MAX_WARNING_HEADER_BYTES = 1024
_propagator = TraceContextTextMapPropagator()


class ChatResponse(Response):
    """Hands an admitted-to-routing request to its exchange as plain ASGI."""

    def __init__(self, gateway: GatewayService) -> None:
        super().__init__()
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        await ChatExchange(self._gateway, scope, receive, send).run()


class ChatExchange:
    """State of one request. Every exit path frees the sink, and cancels what is under way."""

    def __init__(self, gateway: GatewayService, scope: Scope, receive: Receive, send: Send) -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        self._receive = receive
        self._send = send
        self._headers = Headers(scope=scope)
        self._ids: RequestIds = name_request(self._headers.get("x-request-id", ""))
        self._started_s = gateway.clock.monotonic_s()
        self._model = ""
        self._warnings: Sequence[str] = ()
        self._trace_id = ""
        self._in_flight = False
        self._has_responded = False
        self._last_event_s: float | None = None

    async def run(self) -> None:
        """Answer; an error goes out as HTTP status, or as an event once streaming has begun."""
        parent = _propagator.extract(self._headers)
        tracer = self._gateway.tracer
        with (
            tracer.start_as_current_span(
                "chat", context=parent, kind=SpanKind.SERVER, record_exception=False
            ) as span,
            bind_request_id(self._ids.request_id),
        ):
            self._trace_id = f"{span.get_span_context().trace_id:032x}"
            span.set_attribute("gen_ai.operation.name", "chat")
            span.set_attribute("gen_ai.provider.name", "rorqual")
            span.set_attribute("rorqual.request_id", self._ids.request_id)
            try:
                await self._admit()
            except ClientGone:
                span.set_attribute("rorqual.outcome", "client_gone")
            except RequestFailed as failure:
                await self._fail(failure.error)
            except ServingError as err:
                await self._fail(render_error(err))
            except Exception:
                log.exception("a chat request failed")
                await self._fail(render_error(Internal()))

    async def _admit(self) -> None:
        with self._gateway.admission.slot():
            tenant = self._gateway.keys.tenant_of(self._headers.get("authorization", ""))
            body = await http_io.read_body(
                self._receive,
                self._headers,
                max_bytes=self._settings.max_body_bytes,
                timeout_s=self._settings.body_timeout_s,
            )
            with self._gateway.open_sink(self._ids.request_id) as sink:
                await self._answer_unless_gone(body, tenant, sink)

    async def _answer_unless_gone(self, body: bytes, tenant: str, sink: EventSink) -> None:
        answer = asyncio.create_task(self._answer_in_time(body, tenant, sink))
        gone = asyncio.create_task(http_io.wait_disconnect(self._receive))
        overflow = asyncio.create_task(sink.overflowed.wait())
        tasks = (answer, gone, overflow)
        reason = "error"
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if answer in done:
                answer.result()
                return
            reason = "client_gone" if gone in done else "slow_client"
        except DeadlineExceeded:
            reason = "timeout"
            raise
        finally:
            for task in tasks:
                task.cancel()
            if self._in_flight:
                self._cancel(reason)
        await asyncio.gather(*tasks, return_exceptions=True)
        if reason == "slow_client":
            http_io.abort_connection(self._send)
        raise ClientGone

    def _cancel(self, reason: str) -> None:
        self._in_flight = False
        self._gateway.metrics.count_cancel(self._model, reason)
        self._gateway.cancel_soon(self._ids.request_id, reason)

    async def _answer_in_time(self, body: bytes, tenant: str, sink: EventSink) -> None:
        timeout_s = self._settings.request_timeout_s
        deadline_unix_s = self._gateway.clock.now_unix_s() + timeout_s
        scope = asyncio.timeout(timeout_s)
        try:
            async with scope:
                with inherit_deadline(deadline_unix_s):
                    await self._answer(body, tenant, sink, deadline_unix_s)
        except TimeoutError:
            if not scope.expired():
                raise
            raise DeadlineExceeded(f"no complete answer within {timeout_s:g} s") from None

    async def _answer(
        self, body: bytes, tenant: str, sink: EventSink, deadline_unix_s: float
    ) -> None:
        self._in_flight = True
        try:
            encoded = await self._gateway.encode(
                self._ids.request_id, body, tenant=tenant, deadline_unix_s=deadline_unix_s
            )
        except RequestFailed:
            self._in_flight = False
            raise
        self._note_encoded(encoded)
        with self._gateway.metrics.request(encoded.model) as meters:
            try:
                await self._gateway.submit(encoded)
            except ServingError as err:
                rendered = await self._gateway.render_error(self._ids.request_id, err)
                raise RequestFailed(rendered) from err
            feed = EventFeed(self._gateway, sink, self._ids.request_id, encoded.recipe_id)
            if encoded.stream:
                await self._stream(feed, meters)
            else:
                sink.max_bytes = self._settings.max_answer_bytes
                await self._collect(feed, meters)

    def _note_encoded(self, encoded: EncodedRequest) -> None:
        self._model = encoded.model
        self._warnings = encoded.warnings
        span = trace.get_current_span()
        span.update_name(f"chat {encoded.model}")
        span.set_attribute("gen_ai.request.model", encoded.model)
        span.set_attribute("gen_ai.request.max_tokens", encoded.max_new_tokens)
        span.set_attribute("gen_ai.request.choice.count", encoded.num_choices)
        span.set_attribute("gen_ai.response.id", f"chatcmpl-{self._ids.request_id}")

    async def _stream(self, feed: EventFeed, meters: RequestMetrics) -> None:
        while True:
            events = await feed.next()
            if not events:
                await self._start_stream()
                await http_io.send_chunk(self._send, KEEPALIVE, more=True)
                continue
            self._note_arrival(meters)
            last = events[-1]
            if last.error is not None and not self._has_responded:
                raise self._failed(last)
            await self._start_stream()
            chunk = b"".join(frame for event in events for frame in event.data)
            if last.error is not None:
                await http_io.send_chunk(self._send, chunk, more=True) if chunk else None
                raise self._failed(last)
            if last.done:
                self._finish(last, meters)
                await http_io.send_chunk(self._send, chunk, more=False)
                return
            if chunk:
                await http_io.send_chunk(self._send, chunk, more=True)

    async def _collect(self, feed: EventFeed, meters: RequestMetrics) -> None:
        parts: list[bytes] = []
        while True:
            events = await feed.next()
            if not events:
                continue
            self._note_arrival(meters)
            parts += [part for event in events for part in event.data]
            last = events[-1]
            if not last.done:
                continue
            if last.error is not None:
                raise self._failed(last)
            self._finish(last, meters)
            self._has_responded = True
            self._gateway.metrics.count_response(200)
            await http_io.send_whole(self._send, 200, b"".join(parts), self._answer_headers())
            return

    def _note_arrival(self, meters: RequestMetrics) -> None:
        now_s = self._gateway.clock.monotonic_s()
        if self._last_event_s is None:
            ttft_s = now_s - self._started_s
            meters.first_token(ttft_s)
            span = trace.get_current_span()
            span.set_attribute("gen_ai.response.time_to_first_chunk", ttft_s)
        else:
            meters.gap(now_s - self._last_event_s)
        self._last_event_s = now_s

    def _finish(self, last: Event, meters: RequestMetrics) -> None:
        self._in_flight = False
        usage = last.usage
        assert usage is not None
        meters.finished(
            usage,
            tuple(last.finish_reasons),
            self._gateway.clock.monotonic_s() - self._started_s,
        )
        span = trace.get_current_span()
        _note_usage(span, last)
        span.set_attribute("gen_ai.response.finish_reasons", list(last.finish_reasons))

    def _failed(self, last: Event) -> RequestFailed:
        """Recipe has ended the request and told everybody already."""
        self._in_flight = False
        assert last.error is not None
        _note_usage(trace.get_current_span(), last)
        return RequestFailed(last.error)

    async def _start_stream(self) -> None:
        if self._has_responded:
            return
        self._has_responded = True
        self._gateway.metrics.count_response(200)
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *self._answer_headers(),
        ]
        await http_io.start_response(self._send, 200, headers)

    async def _fail(self, error: HttpError) -> None:
        span = trace.get_current_span()
        span.set_status(Status(StatusCode.ERROR, error.code))
        span.set_attribute("error.type", error.code)
        self._gateway.metrics.count_failure(self._model, error.code)
        if self._has_responded:
            await http_io.send_chunk(self._send, error.sse_frames, more=False)
            return
        self._has_responded = True
        self._gateway.metrics.count_response(error.status)
        headers = [*http_io.error_headers(error), *self._answer_headers()]
        await http_io.send_whole(self._send, error.status, error.body, headers)

    def _answer_headers(self) -> http_io.Headers:
        headers = [
            (b"x-request-id", self._ids.echoed.encode()),
            (b"x-trace-id", self._trace_id.encode()),
        ]
        if self._warnings:
            headers.append((b"x-rorqual-warnings", _warnings_header(self._warnings)))
        return headers


def _warnings_header(warnings: Sequence[str]) -> bytes:
    """A JSON list in ASCII of as many warnings as fit."""
    for num_shown in range(len(warnings), 0, -1):
        text = json.dumps(warnings[:num_shown]).encode()
        if len(text) <= MAX_WARNING_HEADER_BYTES:
            return text
    return b"[]"


def _note_usage(span: Span, last: Event) -> None:
    if last.usage is not None:
        counts: dict[str, Any] = {
            "gen_ai.usage.input_tokens": last.usage.prompt_tokens,
            "gen_ai.usage.output_tokens": last.usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": last.usage.cached_tokens,
        }
        span.set_attributes(counts)
