"""The control plane: typed messages over NATS with deadlines, traces and typed errors."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import nats.errors
from google.protobuf.message import Message
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from rorqual_proto.v1.load_pb2 import LoadReport

from rorqual_runtime import subjects
from rorqual_runtime.connection import BrokerConnection
from rorqual_runtime.context import (
    MessageContext,
    attach,
    effective_deadline_s,
    inherit_deadline,
    message_context,
    request_headers,
    trace_context,
    trace_headers,
)
from rorqual_runtime.errors import (
    DeadlineExceeded,
    Draining,
    NoCapacity,
    ServingError,
    error_to_wire,
)
from rorqual_runtime.identities.bus_rights import inbox_prefix
from rorqual_runtime.logs import bind_request_id, get_logger
from rorqual_runtime.micro import DEFAULT_MAX_IN_FLIGHT, MicroService
from rorqual_runtime.patience import Patience
from rorqual_runtime.replies import error_reply, parse_message, parse_reply
from rorqual_runtime.settings import RuntimeSettings

__all__ = ["Bus", "MessageContext", "Subscription"]

MAX_HANDLER_S = 300.0
"""Bound of a handler whose caller named no deadline."""
CLOSE_GRACE_S = 2.0
MAX_SUBSCRIBER_S = 30.0
"""Bound of a subscriber's handler for one message: others wait behind it."""

log = get_logger(__name__)

Req = TypeVar("Req", bound=Message)
Rep = TypeVar("Rep", bound=Message)
M = TypeVar("M", bound=Message)


class Bus:
    """One process's access to the control plane. Make it with `connect`, end it with `close`."""

    def __init__(
        self,
        connection: BrokerConnection,
        name: str,
        *,
        instance_id: str,
        version: str,
        metadata: dict[str, str],
        tracer: Tracer,
        outage_s: float,
    ) -> None:
        self.connection = connection
        self.name = name
        self.instance_id = instance_id
        self.outage_s = outage_s
        """How long a broker may be away before requests that outlast outages give up."""
        self.load: Callable[[], Any] = dict
        """What `$SRV.STATS` shows as data of this instance; must be JSON-able."""
        self._tracer = tracer
        self._micro = MicroService(
            connection.client,
            f"rorqual-{name}",
            instance_id=instance_id,
            version=version,
            metadata=metadata,
            load=lambda: self.load(),
        )
        self._micro_started = False
        self._shared: list[Subscription] = []

    @classmethod
    async def connect(
        cls,
        settings: RuntimeSettings,
        name: str,
        *,
        instance_id: str | None = None,
        version: str = "0.1.0",
        metadata: dict[str, str] | None = None,
        tracer: Tracer | None = None,
        timeout_s: float | None = None,
    ) -> Bus:
        """Connect as service `name`. It shows up in discovery once it serves something.

        Raises: Unavailable when no broker lets us in within `timeout_s` (default: from the
        settings), Unsupported when the files that prove who we are can't be read.
        """
        instance_id = instance_id or settings.instance_id or f"{name}-{secrets.token_hex(4)}"
        connection = BrokerConnection(instance_id, inbox_prefix=inbox_prefix(name))
        await connection.open(
            settings.nats_servers,
            timeout_s=timeout_s or settings.connect_timeout_s,
            secrets_dir=settings.secrets_dir,
        )
        return cls(
            connection,
            name,
            instance_id=instance_id,
            version=version,
            metadata=dict(metadata or {}),
            tracer=tracer or trace.get_tracer("rorqual"),
            outage_s=settings.outage_s,
        )

    @property
    def is_connected(self) -> bool:
        """False while the broker is away; the bus keeps trying to come back."""
        return self.connection.is_connected

    @property
    def is_settled(self) -> bool:
        """Connected, and not only just again: whoever is not there now has gone."""
        return self.connection.is_settled

    @property
    def client(self) -> Client:
        """The NATS client underneath, for tools such as `discover`."""
        return self.connection.client

    async def close(self) -> None:
        """Leave: stop serving, give running handlers a short while, close the connection."""
        running = [task for e in self._micro.endpoints for task in e.in_flight]
        if self.is_connected:
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await asyncio.wait_for(self._micro.stop(), CLOSE_GRACE_S)
        if running:
            _, unfinished = await asyncio.wait(running, timeout=CLOSE_GRACE_S)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        await self.connection.close()

    async def request(
        self,
        subject: str,
        message: Message,
        reply_type: type[Rep],
        *,
        timeout_s: float,
        absent_timeout_s: float | None = None,
        outlasts_outages: bool = False,
        again_s: float | None = None,
    ) -> Rep:
        """Ask and return the answer, at least once: retried while nobody serves the subject (for
        `absent_timeout_s`, default all of the timeout) and after a broken connection.

        outlasts_outages: time without a broker does not count, up to `outage_s`; when it is back,
        the question is asked anew. again_s: without an answer for so long, it is sent once more, to
        whoever is there, in case the one who took it is cut off: for handlers that may be asked
        twice. The inherited deadline bounds all of it.
        Raises: the ServingError that the other end answered with, DeadlineExceeded, Unavailable,
        RequestTooLarge, Corrupt.
        """
        outage_s = self.outage_s if outlasts_outages else 0.0
        end_s = effective_deadline_s(timeout_s + outage_s)
        left_s = end_s - time.monotonic()
        own_s = min(timeout_s, left_s)
        absent_s = own_s if absent_timeout_s is None else absent_timeout_s
        msg = await self.connection.ask(
            subject,
            message.SerializeToString(),
            lambda answer_s: request_headers(min(end_s - time.monotonic(), answer_s)),
            Patience(own_s, absent_s, left_s - own_s if outlasts_outages else None),
            again_s=again_s,
        )
        return parse_reply(reply_type, msg.data, msg.headers)

    async def publish(self, subject: str, message: Message) -> None:
        """Send to whoever listens; at most once.

        Raises: RequestTooLarge before sending, Unavailable when disconnected for a while.
        """
        await self.connection.publish(subject, message.SerializeToString(), headers=trace_headers())

    async def subscribe(
        self,
        subject: str,
        message_type: type[M],
        handler: Callable[[M, MessageContext], Awaitable[None]],
        *,
        queue: str = "",
    ) -> Subscription:
        """Hand each message to the handler, one at a time and in order.

        A message that can't be parsed, a handler that raises and one that takes more than 30 s are
        logged, and it goes on.
        """

        async def on_message(msg: Msg) -> None:
            try:
                with attach(trace_context(msg.headers)):
                    message = parse_message(message_type, msg.data)
                    async with asyncio.timeout(MAX_SUBSCRIBER_S):
                        await handler(message, message_context(msg.subject, msg.headers))
            except Exception:
                log.exception("a subscriber failed", extra={"subject": msg.subject})

        subscription = await self.connection.subscribe(subject, on_message, queue=queue)
        if queue:
            self._shared.append(subscription)
        await self.connection.flush()
        return subscription

    async def subscribe_loads(
        self, subject: str, handler: Callable[[LoadReport, MessageContext], Awaitable[None]]
    ) -> Subscription:
        """As `subscribe`, to load reports; those that tell of another than their sender are
        dropped."""

        async def on_report(report: LoadReport, context: MessageContext) -> None:
            if subjects.is_load_of(context.subject, report.service, report.instance_id):
                await handler(report, context)

        return await self.subscribe(subject, LoadReport, on_report)

    async def start_micro(self) -> None:
        """Appear in discovery. `serve` does it by itself."""
        if not self._micro_started:
            self._micro_started = True
            await self._micro.start()

    def set_metadata(self, key: str, value: str) -> None:
        """Shows in `$SRV.INFO` and `$SRV.PING` from now on."""
        self._micro.set_metadata(key, value)

    async def serve(
        self,
        subject: str,
        request_type: type[Req],
        reply_type: type[Rep],
        handler: Callable[[Req, MessageContext], Awaitable[Rep]],
        *,
        queue: str = "q",
        name: str,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    ) -> None:
        """Answer requests from now on, concurrently up to `max_in_flight`, beyond it NO_CAPACITY.

        The handler runs in a span `<service>.<name>` of the caller's trace and is stopped at the
        caller's deadline. A ServingError becomes the reply's error, any other exception INTERNAL.
        """
        await self.start_micro()
        endpoint = _Served(self, request_type, reply_type, handler, name)
        await self._micro.attach(
            name=name,
            subject=subject,
            queue=queue,
            on_message=endpoint.on_message,
            on_overload=endpoint.on_overload,
            max_in_flight=max_in_flight,
        )
        await self.connection.flush()

    async def stop_shared(self) -> None:
        """Take nothing new on subjects that other instances also serve; what arrived already is
        handled, and subjects of this instance alone stay. Bounded."""
        if not self.is_connected:
            return
        endpoints = [e.drain() for e in self._micro.endpoints if e.is_shared]
        subscriptions, self._shared = self._shared, []
        leaving = [s.drain() for s in subscriptions]  # type: ignore[no-untyped-call]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_GRACE_S):
                await asyncio.gather(*endpoints, *leaving, return_exceptions=True)


class _Served:
    """One endpoint: bytes in, handler, bytes out."""

    def __init__(
        self,
        bus: Bus,
        request_type: type[Req],
        reply_type: type[Rep],
        handler: Callable[[Req, MessageContext], Awaitable[Rep]],
        name: str,
    ) -> None:
        self._bus = bus
        self._request_type: type[Message] = request_type
        self._reply_type: type[Message] = reply_type
        self._handler: Callable[[Any, MessageContext], Awaitable[Message]] = handler
        self._span_name = f"{bus.name}.{name}"

    async def on_message(self, msg: Msg) -> str | None:
        """Handle and answer one request; returns the error it answered with."""
        with self._bus._tracer.start_as_current_span(
            self._span_name,
            context=trace_context(msg.headers),
            kind=SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            error = await self._handle(msg)
            if error is None:
                return None
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            return await self._answer_error(msg, error)

    async def _handle(self, msg: Msg) -> Exception | None:
        """Answer unless something is wrong, which is returned."""
        try:
            payload = await self._call(msg)
            self._bus.connection.check_size(len(payload))
        except ServingError as error:
            return error
        except asyncio.CancelledError:
            await self._answer_error(msg, Draining())
            raise
        except Exception as bug:
            log.exception("a handler failed", extra={"endpoint": self._span_name})
            return bug
        await self._respond(msg, payload, None)
        return None

    async def on_overload(self, msg: Msg) -> str | None:
        """Refuse one request because too many are under way."""
        return await self._answer_error(msg, NoCapacity(f"{self._span_name} has no free slot"))

    async def _call(self, msg: Msg) -> bytes:
        context = message_context(msg.subject, msg.headers)
        left_s = context.remaining_s(default=MAX_HANDLER_S)
        if left_s <= 0:
            raise DeadlineExceeded()
        request = parse_message(self._request_type, msg.data)
        request_id = getattr(request, "request_id", "")
        if request_id:
            trace.get_current_span().set_attribute("rorqual.request_id", request_id)
        with bind_request_id(request_id), inherit_deadline(context.deadline_s):
            scope = asyncio.timeout(left_s)
            try:
                async with scope:
                    reply = await self._handler(request, context)
            except TimeoutError:
                if scope.expired():
                    raise DeadlineExceeded() from None
                raise
        return reply.SerializeToString()

    async def _answer_error(self, msg: Msg, error: BaseException) -> str:
        payload, headers = error_reply(self._reply_type, error)
        await self._respond(msg, payload, headers)
        return str(error_to_wire(error).message)

    async def _respond(self, msg: Msg, payload: bytes, headers: dict[str, str] | None) -> None:
        if not msg.reply:
            return
        try:
            await self._bus.connection.publish(msg.reply, payload, headers=headers)
        except ServingError:
            log.warning("an answer could not be sent", extra={"endpoint": self._span_name})
