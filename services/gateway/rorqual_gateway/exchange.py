"""One request of any protocol from its first byte to its last, whatever happens in between."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from rorqual_runtime.accounts.keys import Scope as KeyScope
from rorqual_runtime.context import inherit_deadline
from rorqual_runtime.errors import (
    DeadlineExceeded,
    Draining,
    Internal,
    InvalidRequest,
    ServingError,
    Unavailable,
)
from rorqual_runtime.logs import bind_request_id, get_logger
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rorqual_gateway import http_io
from rorqual_gateway.convert import DirectAnswer, EncodedRequest, Resume, resume_to_wire
from rorqual_gateway.endpoints import Endpoint
from rorqual_gateway.errors import RequestFailed
from rorqual_gateway.feed import EventFeed, TakeOver
from rorqual_gateway.http_answer import HttpAnswer
from rorqual_gateway.http_io import ClientGone
from rorqual_gateway.keeping import Keeping, look_up
from rorqual_gateway.kept_answers import KeptAnswer, KeyReused, digest_of
from rorqual_gateway.observation import Observation
from rorqual_gateway.quota_gate import OverQuota
from rorqual_gateway.request_ids import RequestIds, name_request
from rorqual_gateway.service import GatewayService
from rorqual_gateway.sinks import Event, EventSink

log = get_logger(__name__)

_propagator = TraceContextTextMapPropagator()
_MAY_COME_BACK = frozenset({"client_gone", "slow_client", "shutdown"})


class ApiResponse(Response):
    """Hands a routed request to its exchange as plain ASGI.

    resource: the id in the path. query: stands in for the body of a request without one.
    """

    def __init__(
        self,
        gateway: GatewayService,
        endpoint: Endpoint,
        *,
        resource: str = "",
        query: bytes | None = None,
    ) -> None:
        super().__init__()
        self._gateway = gateway
        self._endpoint = endpoint
        self._resource = resource
        self._query = query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        exchange = Exchange(self._gateway, self._endpoint, scope, receive, send)
        await exchange.run(self._resource, self._query)


class Exchange:
    """State of one request. Every exit path frees the sink, and cancels what is under way."""

    def __init__(
        self,
        gateway: GatewayService,
        endpoint: Endpoint,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._gateway = gateway
        self._endpoint = endpoint
        self._settings = gateway.settings
        self._receive = receive
        self._send = send
        self._headers = Headers(scope=scope)
        self._ids: RequestIds = name_request(self._headers.get("x-request-id", ""))
        self._http = HttpAnswer(
            send, endpoint.dialect, gateway.metrics, request_id=self._ids.echoed
        )
        self._request_id = self._ids.request_id
        self._in_flight = False
        self._kept: Keeping | None = None
        self._is_left_to_others = False
        self._num_charged = 0
        self._body = b""
        self._resource = ""
        self._tenant = ""
        self._received_unix_s = gateway.clock.now_unix_s()
        self._deadline_unix_s = self._received_unix_s + gateway.settings.request_timeout_s
        self._observed: Observation

    async def run(self, resource: str, query: bytes | None) -> None:
        """Answer; an error goes out as HTTP status, or as an event once streaming has begun."""
        request_id = self._ids.request_id
        with (
            self._gateway.tracer.start_as_current_span(
                self._endpoint.operation,
                context=_propagator.extract(self._headers),
                kind=SpanKind.SERVER,
                record_exception=False,
            ) as span,
            bind_request_id(request_id),
        ):
            self._http.trace_id = f"{span.get_span_context().trace_id:032x}"
            self._observed = Observation(
                self._endpoint, span, self._gateway.metrics, self._gateway.clock, request_id
            )
            self._resource = resource
            try:
                await self._run_or_fail(query)
            finally:
                self._observed.ended()

    async def _run_or_fail(self, query: bytes | None) -> None:
        try:
            await self._admit(query)
        except ClientGone:
            self._observed.client_gone()
        except RequestFailed as failure:
            self._observed.failed(failure.error.code)
            await self._http.fail(failure.error)
        except OverQuota as err:
            self._http.quota = err.state
            await self._fail(err)
        except ServingError as err:
            await self._fail(err)
        except Exception:
            log.exception("a request failed")
            await self._fail(Internal())

    async def _fail(self, error: ServingError) -> None:
        self._observed.failed(error.code.name)
        dialect = self._endpoint.dialect
        await self._http.fail(dialect.render_error(error, self._http.num_frames))

    async def _admit(self, query: bytes | None) -> None:
        with self._gateway.admission.slot():
            caller = await self._gateway.callers.caller_of(self._headers, KeyScope.INFERENCE)
            self._tenant = caller.tenant
            async with self._gateway.quotas.hold(
                caller, self._ids.request_id, self._num_uncharged_tokens
            ) as quota:
                self._http.quota = quota
                self._body = query if query is not None else await self._read_body()
                if (kept := await self._look_up()) is not None:
                    self._adopt(kept)
                    if kept.answer.body is not None:
                        await self._send_again(kept)
                        return
                try:
                    with self._gateway.open_sink(self._request_id) as sink:
                        await self._answer_unless_gone(sink)
                except BaseException:
                    self._release_soon()
                    raise
                finally:
                    await self._count_charged()

    def _num_uncharged_tokens(self) -> int:
        return max(0, self._observed.num_tokens - self._num_charged)

    async def _count_charged(self) -> None:
        """Tokens of an answer are charged once: less those that others were charged with, and those
        that go on are told of ours."""
        kept = self._kept
        if kept is None:
            return
        if not kept.is_new:
            await kept.count_charged()
        self._num_charged = kept.answer.charged_tokens
        if self._is_left_to_others:
            self._gateway.soon(kept.left(max(self._num_charged, self._observed.num_tokens)))

    async def _look_up(self) -> Keeping | None:
        """Whether this goes on with an answer, or is the first to ask under its key.

        Raises: RequestFailed, InvalidRequest, NotFound, Unavailable.
        """
        if not self._endpoint.id_prefix:
            return None  # nothing is generated
        wanted = KeptAnswer(
            digest_of(self._endpoint, self._resource, self._body),
            self._request_id,
            self._gateway.life,
            self._received_unix_s,
            self._deadline_unix_s,
        )
        try:
            return await look_up(self._gateway.kept_answers, self._headers, self._tenant, wanted)
        except KeyReused:
            message = "this Idempotency-Key was used for another request"
            raise RequestFailed(self._endpoint.dialect.plain_error(422, message)) from None

    def _adopt(self, kept: Keeping) -> None:
        """Be the request whose answer this is."""
        self._kept = kept
        self._http.has_ids = True
        self._request_id = kept.answer.request_id
        self._received_unix_s = kept.answer.received_unix_s
        self._deadline_unix_s = kept.answer.deadline_unix_s

    async def _send_again(self, kept: Keeping) -> None:
        """An answer that has ended already."""
        if kept.answer.is_stream:
            await self._http.send_frames([kept.rest()], more=False)
        else:
            await self._http.send_body(200, kept.rest())

    def _release_soon(self) -> None:
        if self._kept is not None and not self._is_left_to_others:
            self._gateway.soon(self._kept.release())

    async def _read_body(self) -> bytes:
        encoding = self._headers.get("content-encoding", "identity")
        if encoding != "identity":
            message = f"content-encoding {encoding[:40]!r} is not supported: send the body as it is"
            raise RequestFailed(self._endpoint.dialect.plain_error(415, message))
        return await http_io.read_body(
            self._receive,
            self._headers,
            max_bytes=self._settings.max_body_bytes,
            timeout_s=self._settings.body_timeout_s,
        )

    async def _answer_unless_gone(self, sink: EventSink) -> None:
        answer = asyncio.create_task(self._answer_in_time(sink))
        gone = asyncio.create_task(http_io.wait_disconnect(self._receive))
        overflow = asyncio.create_task(sink.overflowed.wait())
        superseded = asyncio.create_task(sink.superseded.wait())
        tasks = (answer, gone, overflow, superseded)
        reason = "error"
        try:
            ends: set[asyncio.Future[Any]] = {*tasks, self._gateway.time_is_up}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if answer in done:
                answer.result()
                return
            if superseded in done:
                self._in_flight, self._is_left_to_others = False, True
                reason = "superseded"
            elif gone in done:
                reason = "client_gone"
            else:
                reason = "slow_client" if overflow in done else "shutdown"
        except DeadlineExceeded:
            reason = "timeout"
            raise
        finally:
            for task in tasks:
                task.cancel()
            if self._in_flight:
                self._let_go(reason, sink)
        await asyncio.gather(*tasks, return_exceptions=True)
        if reason == "shutdown":
            raise Draining("this server shuts down before the answer is complete")
        if reason in ("slow_client", "superseded"):
            http_io.abort_connection(self._send)
        raise ClientGone

    def _let_go(self, reason: str, sink: EventSink) -> None:
        self._in_flight = False
        if self._kept is not None and self._kept.is_under_way and reason in _MAY_COME_BACK:
            self._is_left_to_others = True
            recipe_id = self._kept.answer.recipe_id
            self._gateway.soon(self._gateway.stop_listening(recipe_id, self._request_id, sink))
            return
        self._observed.cancelled(reason)
        self._gateway.soon(self._gateway.cancel(self._request_id, reason))

    async def _answer_in_time(self, sink: EventSink) -> None:
        clock = self._gateway.clock
        left_s = self._deadline_unix_s - clock.now_unix_s()
        scope = asyncio.timeout(left_s)
        try:
            async with scope:
                with inherit_deadline(clock.monotonic_s() + left_s):
                    if self._kept is not None and not self._kept.is_new:
                        await self._go_on(self._kept, sink)
                    else:
                        await self._answer(await self._read(), sink)
        except TimeoutError:
            if not scope.expired():
                raise
            timeout_s = self._settings.request_timeout_s
            raise DeadlineExceeded(f"no complete answer within {timeout_s:g} s") from None

    async def _encode(
        self, resume: Resume | None = None, lost_id: str = ""
    ) -> EncodedRequest | DirectAnswer:
        """Have recipe read the body: the first time, or to go on where another instance ended."""
        return await self._gateway.encode(
            self._request_id,
            self._endpoint,
            self._body,
            resource=self._resource,
            tenant=self._tenant,
            received_unix_s=self._received_unix_s,
            deadline_unix_s=self._deadline_unix_s,
            resume=resume,
            lost_id=lost_id,
        )

    async def _read(self) -> EncodedRequest | DirectAnswer:
        self._in_flight = True
        try:
            return await self._encode()
        except RequestFailed:
            self._in_flight = False
            raise

    async def _answer(self, found: EncodedRequest | DirectAnswer, sink: EventSink) -> None:
        if isinstance(found, DirectAnswer):
            self._in_flight = False
            body = await self._gateway.read_answer(found)
            await self._http.send_body(found.http_status, body)
            return
        self._http.warnings = found.warnings
        with self._generation(found, sink, found.recipe_id) as feed:
            await self._submit(found)
            if self._kept is not None:
                await self._kept.begun(found)
            await (self._stream(feed) if found.stream else self._collect(feed))

    async def _go_on(self, kept: Keeping, sink: EventSink) -> None:
        """The rest of an answer that is under way."""
        self._in_flight = True
        found = kept.answer.encoded()
        kept.place(sink)
        with self._generation(found, sink, kept.answer.first_recipe_id) as feed:
            await feed.attach()
            await (self._stream(feed) if found.stream else self._collect(feed))

    @contextmanager
    def _generation(
        self, found: EncodedRequest, sink: EventSink, first_recipe_id: str
    ) -> Iterator[EventFeed]:
        """The answer's events. Without a place for its body, the body is let go."""
        with (
            self._observed.generation(found),
            self._gateway.kept_bodies.hold(len(self._body)) as is_kept,
        ):
            take_over: TakeOver | None = partial(self._take_over, sink, first_recipe_id)
            if not is_kept:
                self._body, take_over = b"", None
            yield EventFeed(self._gateway, sink, self._request_id, found.recipe_id, take_over)

    async def _take_over(self, sink: EventSink, first_recipe_id: str, lost_id: str) -> str:
        """Another instance goes on with the answer; its id."""
        log.warning("recipe is lost, another one takes over", extra={"from": lost_id})
        if self._kept is not None and not self._kept.can_be_taken_over:
            raise RequestFailed(self._endpoint.dialect.render_error(Unavailable()))
        take_over = sink.claim_take_over()
        resume = resume_to_wire(sink, first_recipe_id, take_over)
        found = await self._encode(resume, lost_id)
        if isinstance(found, DirectAnswer):
            raise Internal("a generation became an answer without one")
        if self._kept is not None:
            await self._kept.moved(found.recipe_id, take_over)
        return found.recipe_id

    async def _submit(self, encoded: EncodedRequest) -> None:
        try:
            await self._gateway.submit(encoded)
        except ServingError as err:
            rendered = await self._gateway.render_error(self._request_id, self._endpoint, err)
            raise RequestFailed(rendered) from err

    async def _stream(self, feed: EventFeed) -> None:
        while True:
            events = await feed.next()
            if not events:
                await self._http.keep_alive()
                continue
            self._observed.taken(events)
            last = events[-1]
            if last.error is not None and not self._http.has_begun:
                raise self._failed(last)
            frames = self._frames(events)
            if last.done and last.error is None:
                self._finish(last)
                await self._http.send_frames(frames, more=False)
                self._complete()
                return
            await self._http.send_frames(frames, more=True)
            if last.error is not None:
                raise self._failed(last)

    async def _collect(self, feed: EventFeed) -> None:
        parts: list[bytes] = []
        num_bytes = 0
        while True:
            events = await feed.next()
            if not events:
                continue
            self._observed.taken(events)
            parts += [part for event in events for part in event.data]
            num_bytes += sum(len(part) for event in events for part in event.data)
            if num_bytes > self._settings.max_answer_bytes:
                raise InvalidRequest(
                    f"the answer exceeds {self._settings.max_answer_bytes} bytes: have it streamed"
                )
            last = events[-1]
            if not last.done:
                continue
            if last.error is not None:
                raise self._failed(last)
            self._finish(last)
            body = b"".join(parts)
            await self._http.send_body(200, body)
            self._complete(body)
            return

    def _frames(self, events: Sequence[Event]) -> list[bytes]:
        if self._kept is not None:
            return self._kept.frames(events)
        return [frame for event in events for frame in event.data]

    def _complete(self, body: bytes | None = None) -> None:
        if self._kept is not None:
            self._gateway.soon(self._kept.completed(body))

    def _finish(self, last: Event) -> None:
        self._in_flight = False
        self._observed.finished(last)

    def _failed(self, last: Event) -> RequestFailed:
        """Recipe has ended the request and told everybody already."""
        self._in_flight = False
        assert last.error is not None
        return RequestFailed(last.error)
