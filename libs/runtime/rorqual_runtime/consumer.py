"""The worker's end of the work queue: pulls that never hold more jobs than were asked for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from rorqual_runtime.connection import BrokerConnection
from rorqual_runtime.errors import ServingError
from rorqual_runtime.jetstream import JetStreamApi
from rorqual_runtime.leases import LeasedJob
from rorqual_runtime.logs import get_logger

POLL_SLICE_S = 5.0
"""A pull request that the broker lost is repeated after this long."""
REPLY_GRACE_S = 3.0
REPAIR_PAUSE_S = 0.1

log = get_logger(__name__)


@dataclass
class _Inbox:
    """Where the broker delivers what one consumer asked for."""

    subject: str
    subscription: Subscription
    messages: asyncio.Queue[Msg | None]
    num_asked: int = 0
    """Jobs that the pull request under way may still bring; 0 when there is none."""
    asked_until_s: float = 0.0
    """When the broker ends that request (monotonic)."""


class QueueConsumer:
    """Reads one subject of a work queue.

    There is no taking back a pull request: when a pull is cancelled, the request stays and serves
    the next pull. A job that it brings while nobody pulls goes back to the queue at once.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        *,
        ensure_stream: Callable[[], Awaitable[None]],
        stream: str,
        subject: str,
        durable: str,
        ack_wait_s: float,
    ) -> None:
        self._connection = connection
        self._ensure_stream = ensure_stream
        self._stream = stream
        self._ack_wait_s = ack_wait_s
        self._config = {
            "durable_name": durable,
            "filter_subject": subject,
            "ack_policy": "explicit",
            "ack_wait": int(ack_wait_s * 1e9),
            "max_deliver": -1,
            "max_ack_pending": 8192,
            "deliver_policy": "all",
            "replay_policy": "instant",
        }
        self._next_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._inbox: _Inbox | None = None
        self._is_pulling = False
        self._lock = asyncio.Lock()
        connection.on_disconnect(self._on_disconnect)

    async def ensure(self) -> None:
        """Stream and consumer exist. Raises: as `WorkQueue.ensure`."""
        await self._ensure_stream()
        await JetStreamApi(self._connection).ensure_consumer(self._stream, self._config)

    async def pull(self, max_jobs: int, timeout_s: float) -> list[LeasedJob]:
        """Up to `max_jobs` jobs as soon as there is one; [] after `timeout_s` without any, also
        while the broker is away. Cancelling it loses no job."""
        until_s = time.monotonic() + timeout_s
        async with self._lock:
            self._is_pulling = True
            try:
                while True:
                    left_s = max(0.0, until_s - time.monotonic())
                    jobs = await self._try(max_jobs, min(left_s, POLL_SLICE_S))
                    if jobs or left_s == 0.0:
                        return jobs
            finally:
                self._is_pulling = False
                self._return_unasked()

    async def close(self) -> None:
        """Stop reading; what is delivered all the same goes back to the queue."""
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await self._drain(inbox)

    async def _try(self, max_jobs: int, wait_s: float) -> list[LeasedJob]:
        """What is there now, else the next job within `wait_s`. Broker trouble counts as none."""
        try:
            await self._connection.wait_connected(wait_s)
            inbox = self._inbox = self._inbox or await self._open_inbox()
            jobs: list[LeasedJob] = []
            if inbox.num_asked == 0 and (max_jobs > 1 or wait_s == 0.0):
                await self._ask(inbox, max_jobs, expires_s=0.0)
                jobs = await self._collect(inbox, max_jobs, wait_s=0.0)
            if not jobs and wait_s > 0.0 and inbox is self._inbox:
                if inbox.num_asked == 0:
                    await self._ask(inbox, 1, expires_s=wait_s)
                jobs = await self._collect(inbox, max_jobs, wait_s)
            return jobs
        except ServingError:
            await asyncio.sleep(min(REPAIR_PAUSE_S, wait_s))
            return []

    async def _ask(self, inbox: _Inbox, num_jobs: int, *, expires_s: float) -> None:
        """Send a pull request: for what is there now (`expires_s` 0), or for what comes."""
        limit = {"expires": int(expires_s * 1e9)} if expires_s > 0 else {"no_wait": True}
        request = json.dumps({"batch": num_jobs, **limit}).encode()
        inbox.num_asked = num_jobs
        inbox.asked_until_s = time.monotonic() + expires_s
        await self._connection.publish(self._next_subject, request, reply=inbox.subject)

    async def _collect(self, inbox: _Inbox, max_jobs: int, wait_s: float) -> list[LeasedJob]:
        """Jobs of the request under way until it ends, brought `max_jobs`, or `wait_s` is over."""
        jobs: list[LeasedJob] = []
        ends_meanwhile = inbox.asked_until_s <= time.monotonic() + wait_s
        try:
            async with asyncio.timeout(wait_s + (REPLY_GRACE_S if ends_meanwhile else 0.0)):
                while inbox.num_asked > 0 and len(jobs) < max_jobs:
                    msg = await inbox.messages.get()
                    if msg is not None and _is_job(msg):
                        inbox.num_asked -= 1
                        jobs.append(self._lease(msg))
                    else:
                        await self._on_end(inbox, msg)
        except TimeoutError:
            if ends_meanwhile:  # the broker lost the request
                self._drop(inbox)
        except asyncio.CancelledError:
            for job in jobs:
                self._connection.background(_give_back(job))
            raise
        return jobs

    async def _on_end(self, inbox: _Inbox, msg: Msg | None) -> None:
        """A status ends the request: 404 and 408 say that there was nothing, all others that the
        consumer must be looked after. None: the connection broke, and the request with it."""
        inbox.num_asked = 0
        if msg is None:
            self._drop(inbox)
        elif (status := _status(msg)) not in ("404", "408"):
            log.info("repairing the queue consumer", extra={"status": status})
            self._drop(inbox)
            await asyncio.sleep(REPAIR_PAUSE_S)
            await self.ensure()

    async def _open_inbox(self) -> _Inbox:
        messages: asyncio.Queue[Msg | None] = asyncio.Queue()

        async def on_message(msg: Msg) -> None:
            messages.put_nowait(msg)
            if not self._is_pulling:
                self._return_unasked()

        subject = self._connection.client.new_inbox()
        subscription = await self._connection.subscribe(subject, on_message)
        return _Inbox(subject, subscription, messages)

    def _return_unasked(self) -> None:
        """Give back what came while nobody pulls."""
        inbox = self._inbox
        while inbox is not None and not inbox.messages.empty():
            msg = inbox.messages.get_nowait()
            if msg is not None and _is_job(msg):
                inbox.num_asked = max(0, inbox.num_asked - 1)
                self._connection.background(_give_back(self._lease(msg)))
            else:
                inbox.num_asked = 0

    def _on_disconnect(self) -> None:
        inbox = self._inbox
        if inbox is None:
            return
        inbox.num_asked = 1 if self._is_pulling else 0
        inbox.messages.put_nowait(None)
        if not self._is_pulling:
            self._drop(inbox)

    def _drop(self, inbox: _Inbox) -> None:
        """Forget an inbox; what still arrives there goes back to the queue."""
        if self._inbox is inbox:
            self._inbox = None
        self._connection.background(self._drain(inbox))

    async def _drain(self, inbox: _Inbox) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):
            await inbox.subscription.drain()  # type: ignore[no-untyped-call]
        while not inbox.messages.empty():
            msg = inbox.messages.get_nowait()
            if msg is not None and _is_job(msg):
                await _give_back(self._lease(msg))

    def _lease(self, msg: Msg) -> LeasedJob:
        return LeasedJob(self._connection, msg, ack_wait_s=self._ack_wait_s)


async def _give_back(job: LeasedJob) -> None:
    await job.nak()


def _is_job(msg: Msg) -> bool:
    return bool(msg.reply.startswith("$JS.ACK."))


def _status(msg: Msg) -> str:
    return str((msg.headers or {}).get("Status", ""))
