"""One NATS connection that never gives up, with bounded publish and request."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from rorqual_runtime.errors import DeadlineExceeded, RequestTooLarge, Unavailable
from rorqual_runtime.identities.files import read_user_key, trusting_context
from rorqual_runtime.logs import get_logger
from rorqual_runtime.patience import REJOIN_S, Patience
from rorqual_runtime.subjects import PREFIX

PUBLISH_TIMEOUT_S = 2.0
RECONNECT_WAIT_S = 0.1
PING_INTERVAL_S = 1
MAX_PINGS = 2
"""With so many of them unanswered when the next is due, we connect anew."""
LOG_INTERVAL_S = 3.0
BACKGROUND_GRACE_S = 1.0
POLL_S = 0.02
HEADER_RESERVE_BYTES = 1024
MAX_SENT_AGAIN = 3
"""Times a question is sent again while its answer is awaited."""
MAX_UNSENT_BYTES = 8 << 20
"""A broker that stops reading is given up on with this much waiting to be sent."""

log = get_logger(__name__)

Reply = asyncio.Future[Msg]


class NoResponders(Exception):
    """Nobody subscribes to the subject just now."""


class Disconnected(Exception):
    """The connection broke while the reply was awaited."""


class EnduringClient(Client):
    """nats-py closes for good on most `-ERR` lines, which a busy or restarting server also sends
    to healthy clients ('Authentication Timeout'), and its reconnect loop ends with an exception
    that it does not know. This one goes on.

    Its PING also overtakes what waits to be sent, so that `flush` could return before the broker
    had read the subscription made just before it. Here a PING goes last.

    And it leaves every message to a flusher task, which comes to it after whatever else the loop
    has to do. Here a socket with room gets it at once.
    """

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        if self.is_connected:
            self._write_pending()
        await super()._send_ping(future)

    async def _flush_pending(self, force_flush: bool = False) -> None:
        if force_flush or not self.is_connected or self._is_backed_up():
            await super()._flush_pending(force_flush)
        else:
            self._write_pending()

    def _is_backed_up(self) -> bool:
        """Whether the socket has not taken what was written: the flusher waits for it then."""
        writer = getattr(self._transport, "_io_writer", None)
        return writer is None or writer.transport.get_write_buffer_size() > 0

    def _write_pending(self) -> None:
        if self._pending and self._transport is not None:
            with contextlib.suppress(RuntimeError):  # uvloop's word for a socket that is closed
                self._transport.writelines(self._pending)
            self._pending, self._pending_data_size = [], 0

    def _abort(self) -> None:
        """Close the socket with what it has not taken yet: nats-py waits for that, and a broker
        that is cut off takes nothing."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg.lower():
            await self._error_cb(nats.errors.Error(f"nats: {err_msg}"))
            return
        await self._process_op_err(nats.errors.Error(f"nats: {err_msg}"))

    async def _attempt_reconnect(self) -> None:
        self._abort()
        while not self.is_closed:
            try:
                await super()._attempt_reconnect()
                return
            except Exception as error:
                await self._error_cb(error)
                self._status = Client.RECONNECTING
                await asyncio.sleep(RECONNECT_WAIT_S)


def sign_in(client: Client, servers: list[str], secrets_dir: Path | None) -> dict[str, Any]:
    """What `client.connect` must be told to prove who we are, and to know the servers; nothing
    without a directory.

    Raises: Unsupported when its files can't be read.
    """
    key = read_user_key(secrets_dir)
    if key is None or secrets_dir is None:
        return {}
    client._public_nkey = key.public  # nats-py takes it from a seed only
    is_tls = any(server.startswith(("tls://", "wss://")) for server in servers)
    return {"signature_cb": key.sign, "tls": trusting_context(secrets_dir) if is_tls else None}


async def ended_within(work: Coroutine[Any, Any, None], timeout_s: float) -> bool:
    """Run to its end, or give it up: nats-py drops a cancellation that meets it in the midst of a
    flush, and would try to connect for ever. Raises: what `work` does."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=POLL_S)
    if task.cancelled():
        return False
    task.result()
    return True


class BrokerConnection:
    """Publish, request and subscribe that survive broker restarts.

    nats-py restores subscriptions after a reconnect; this class adds what it lacks: bounded
    waits while disconnected, replies that fail at once when the connection breaks, hooks.
    """

    def __init__(self, name: str, *, inbox_prefix: str = "_INBOX") -> None:
        """inbox_prefix: of the subjects at which we are answered."""
        self.client: Client = EnduringClient()
        self._name = name
        self._inbox_prefix = inbox_prefix
        self._replies: dict[str, Reply] = {}
        self._tokens = itertools.count()
        self._inbox = ""
        self._on_disconnect: list[Callable[[], None]] = []
        self._on_reconnect: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._background: set[asyncio.Task[None]] = set()
        self._logged_s: dict[str, float] = {}
        self._returned_s = -REJOIN_S
        self._closing = False

    @property
    def is_connected(self) -> bool:
        return self.client.is_connected

    @property
    def is_settled(self) -> bool:
        """Connected, and not only just again: whoever is not there now has gone."""
        return self.is_connected and time.monotonic() - self._returned_s >= REJOIN_S

    async def open(
        self, servers: list[str], *, timeout_s: float, secrets_dir: Path | None = None
    ) -> None:
        """Raises: Unavailable when no server let us in within `timeout_s`; Unsupported when the
        files that prove who we are can't be read."""
        identity = sign_in(self.client, servers, secrets_dir)
        connecting = self.client.connect(
            servers,
            name=self._name,
            inbox_prefix=self._inbox_prefix,
            **identity,
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]
            connect_timeout=2,
            pending_size=4 * MAX_UNSENT_BYTES,
            flush_timeout=PUBLISH_TIMEOUT_S,
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=MAX_PINGS,
            error_cb=self._note_error,
            disconnected_cb=self._note_disconnect,
            reconnected_cb=self._note_reconnect,
        )
        if not await ended_within(connecting, timeout_s):
            reason = f" ({self.client.last_error})" if self.client.last_error else ""
            await self.client.close()
            where = ", ".join(map(without_login, servers))
            raise Unavailable(f"no NATS server at {where} within {timeout_s:g} s{reason}")
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*", cb=self._on_reply)

    async def close(self) -> None:
        """Send what is pending, then close; bounded."""
        self._closing = True
        await self._finish_background()
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                if self.is_connected:
                    await self.client.flush(PUBLISH_TIMEOUT_S)  # type: ignore[arg-type]
                await self.client.close()
        except (TimeoutError, nats.errors.Error, OSError):
            log.warning("the NATS connection did not close cleanly")
        self._fail_replies()

    def on_disconnect(self, hook: Callable[[], None]) -> None:
        """Call `hook` each time the connection breaks."""
        self._on_disconnect.append(hook)

    def on_reconnect(self, hook: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `hook` each time the connection is back and subscriptions are restored."""
        self._on_reconnect.append(hook)

    async def wait_connected(self, timeout_s: float) -> None:
        """Raises: Unavailable when still disconnected after `timeout_s`."""
        await self._wait_for(lambda: self.client.is_connected, timeout_s)

    def _can_send(self) -> bool:
        return self.client.is_connected and self.client.pending_data_size < MAX_UNSENT_BYTES

    async def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while not condition():
            if self._closing or time.monotonic() >= until_s:
                raise Unavailable("the message bus is unreachable")
            await asyncio.sleep(POLL_S)

    def check_size(self, num_bytes: int) -> None:
        """Raises: RequestTooLarge when the broker would refuse a payload of this size."""
        limit = self.client.max_payload - HEADER_RESERVE_BYTES
        if num_bytes > limit:
            raise RequestTooLarge(num_bytes, limit)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: dict[str, str] | None = None,
        timeout_s: float = PUBLISH_TIMEOUT_S,
    ) -> None:
        """Hand the message to the broker.

        Raises: RequestTooLarge before sending, Unavailable when the broker is away, or reads
        nothing, for `timeout_s`.
        """
        self.check_size(len(payload))
        await self._wait_for(self._can_send, timeout_s)
        try:
            await self.client.publish(subject, payload, reply=reply, headers=headers or None)
        except (nats.errors.Error, OSError) as error:
            raise Unavailable("the message bus is unreachable") from error

    async def request_once(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str],
        timeout_s: float,
        *,
        again_s: float | None = None,
    ) -> Msg:
        """One try. again_s: when the question is sent again, and then after twice the time each:
        whoever took it may be cut off. The first answer counts. Each has a place of its own: the
        server lets nobody answer twice at one.

        Raises: NoResponders, Disconnected, DeadlineExceeded, Unavailable.
        """
        tokens: list[str] = []
        loop = asyncio.get_running_loop()
        reply: Reply = loop.create_future()
        timer = loop.call_later(timeout_s, _expire, reply, subject)
        try:
            for wait_s in _waits(again_s):
                tokens.append(str(next(self._tokens)))
                self._replies[tokens[-1]] = reply
                await self.publish(
                    subject,
                    payload,
                    reply=f"{self._inbox}.{tokens[-1]}",
                    headers=headers,
                    timeout_s=timeout_s,
                )
                await asyncio.wait({reply}, timeout=wait_s)
                if reply.done():
                    break
            return await reply
        finally:
            timer.cancel()
            for token in tokens:
                del self._replies[token]
            reply.cancel()

    async def request(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str],
        *,
        timeout_s: float,
        absent_timeout_s: float | None = None,
    ) -> Msg:
        """Ask until answered, at least once: a broken connection or an absent service is retried.

        absent_timeout_s: how long to hope for a subject that nobody serves; default: all the time.
        Raises: DeadlineExceeded, Unavailable, RequestTooLarge.
        """
        absent_s = timeout_s if absent_timeout_s is None else absent_timeout_s
        return await self.ask(
            subject, payload, lambda _left_s: headers, Patience(timeout_s, absent_s)
        )

    async def ask(
        self,
        subject: str,
        payload: bytes,
        headers_of: Callable[[float], dict[str, str]],
        patience: Patience,
        *,
        again_s: float | None = None,
    ) -> Msg:
        """`request` with headers that may tell how many seconds are left for the answer. again_s:
        see `request_once`.

        Raises: DeadlineExceeded, Unavailable, RequestTooLarge.
        """
        if self.is_connected and not self.is_settled:
            patience.broker_is_back()
        while True:
            if not self.is_connected:
                await self._outlast(patience)
            if (left_s := patience.left_s) <= 0:
                raise DeadlineExceeded(
                    f"{_spoken(subject)} did not answer within {patience.timeout_s:.3g} s"
                )
            try:
                return await self.request_once(
                    subject, payload, headers_of(left_s), left_s, again_s=again_s
                )
            except NoResponders:
                if not await patience.pause():
                    raise Unavailable(f"nobody serves {_spoken(subject)}") from None
            except Disconnected:
                await self._outlast(patience)

    async def _outlast(self, patience: Patience) -> None:
        """Raises: Unavailable when the broker stays away for too long."""
        await self.wait_connected(patience.broker_left_s)
        patience.broker_is_back()

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], *, queue: str = ""
    ) -> Subscription:
        """Subscribe with a callback; messages are handled in order, one at a time."""
        await self.wait_connected(PUBLISH_TIMEOUT_S)
        return await self.client.subscribe(subject, queue=queue, cb=callback)

    async def flush(self) -> None:
        """Return once the broker has seen everything sent so far.

        Raises: Unavailable after a bounded wait.
        """
        try:
            await self.client.flush(PUBLISH_TIMEOUT_S)  # type: ignore[arg-type]
        except (nats.errors.Error, OSError) as error:
            raise Unavailable("the message bus is unreachable") from error

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run to its end beside everything else; `close` waits for it a moment."""
        task = asyncio.get_running_loop().create_task(_guarded(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _finish_background(self) -> None:
        if not self._background:
            return
        _, unfinished = await asyncio.wait(set(self._background), timeout=BACKGROUND_GRACE_S)
        for task in unfinished:
            task.cancel()

    async def _on_reply(self, msg: Msg) -> None:
        reply = self._replies.get(msg.subject.rpartition(".")[2])
        if reply is None or reply.done():
            return
        if not msg.data and msg.headers and msg.headers.get("Status") == "503":
            reply.set_exception(NoResponders())
        else:
            reply.set_result(msg)

    def _fail_replies(self) -> None:
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(Disconnected())

    async def _note_disconnect(self) -> None:
        self._fail_replies()
        if not self._closing:
            log.warning("the message bus is gone, reconnecting")
        for hook in self._on_disconnect:
            hook()

    async def _note_reconnect(self) -> None:
        log.info("the message bus is back")
        self._returned_s = time.monotonic()
        for hook in self._on_reconnect:
            self.background(hook())

    async def _note_error(self, error: Exception) -> None:
        """nats-py reports every failed connection attempt and every message that it drops here:
        of each kind a few are logged, not all."""
        if self._closing or not self._is_time_to_log(type(error).__name__):
            return
        if isinstance(error, nats.errors.SlowConsumerError):
            log.error(
                "messages dropped: a subscriber is too slow", extra={"subject": error.subject}
            )
        else:
            log.warning("message bus: %s", _reason(error))

    def _is_time_to_log(self, kind: str) -> bool:
        now_s = time.monotonic()
        if now_s - self._logged_s.get(kind, -LOG_INTERVAL_S) < LOG_INTERVAL_S:
            return False
        self._logged_s[kind] = now_s
        return True


def _waits(again_s: float | None) -> Iterator[float | None]:
    """For an answer, before the question is sent again; None = for good."""
    if again_s is not None:
        yield from (again_s * 2**number for number in range(MAX_SENT_AGAIN))
    yield None


def _expire(reply: Reply, subject: str) -> None:
    if not reply.done():
        reply.set_exception(DeadlineExceeded(f"{_spoken(subject)} did not answer in time"))


def _spoken(subject: str) -> str:
    """As a client may read it: recipe.encode."""
    return subject.removeprefix(f"{PREFIX}.")


def without_login(server: str) -> str:
    """The URL of a server as it may be shown."""
    scheme, _, rest = server.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _reason(error: Any) -> str:
    return f"{type(error).__name__}: {error}"


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:
        log.exception("background work on the message bus failed")
