"""The work queue: jobs that survive broker and workers, each held by one worker at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from typing import Any

import nats.errors
from google.protobuf.message import Message
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.connection import BrokerConnection
from rorqual_runtime.context import effective_deadline_unix_s, trace_headers
from rorqual_runtime.errors import ServingError, Unavailable
from rorqual_runtime.jetstream import JetStreamApi, parse_api_reply, raise_for_error
from rorqual_runtime.leases import ABSENT_TIMEOUT_S, MAX_DELIVERIES, LeasedJob
from rorqual_runtime.logs import get_logger

__all__ = ["MAX_DELIVERIES", "LeasedJob", "QueueConsumer", "WorkQueue"]

ACK_WAIT_S = 10.0
MAX_JOBS = 100_000
MAX_JOB_AGE_S = 3600.0
DUPLICATE_WINDOW_S = 120.0
MAX_DEAD_LETTERS = 10_000
MAX_DEAD_LETTER_AGE_S = 3 * 86_400.0
PUBLISH_TIMEOUT_S = 5.0
POLL_SLICE_S = 5.0
"""A pull request that the broker lost is repeated after this long."""
REPLY_GRACE_S = 1.0
REPAIR_PAUSE_S = 0.1

log = get_logger(__name__)


class WorkQueue:
    """A JetStream stream from which each job is removed once a worker has acknowledged it."""

    def __init__(
        self,
        bus: Bus,
        *,
        stream: str = subjects.PREFILL_STREAM,
        subject_filter: str | None = None,
        max_jobs: int = MAX_JOBS,
        max_age_s: float = MAX_JOB_AGE_S,
        ack_wait_s: float = ACK_WAIT_S,
        num_replicas: int = 1,
    ) -> None:
        self._connection = bus.connection
        self._api = JetStreamApi(bus.connection)
        self._stream = stream
        self._ack_wait_s = ack_wait_s
        self._streams = (
            {
                "name": stream,
                "subjects": [subject_filter or subjects.prefill_jobs("*", "*")],
                "retention": "workqueue",
                "storage": "file",
                "discard": "new",
                "max_msgs": max_jobs,
                "max_age": _nanos(max_age_s),
                "duplicate_window": _nanos(min(DUPLICATE_WINDOW_S, max_age_s)),
                "num_replicas": num_replicas,
            },
            {
                "name": subjects.DEAD_LETTER_STREAM,
                "subjects": [subjects.dead_letters()],
                "retention": "limits",
                "storage": "file",
                "discard": "old",
                "max_msgs": MAX_DEAD_LETTERS,
                "max_age": _nanos(MAX_DEAD_LETTER_AGE_S),
                "num_replicas": num_replicas,
            },
        )
        self._is_watching = False

    async def ensure(self) -> None:
        """The streams exist, now and after every reconnect.

        Raises: Unavailable, DeadlineExceeded, Internal (a broker without JetStream).
        """
        if not self._is_watching:
            self._is_watching = True
            self._connection.on_reconnect(self.ensure)
        for config in self._streams:
            await self._api.ensure_stream(config)

    async def publish(self, subject: str, message: Message, *, msg_id: str) -> bool:
        """Put a job on the queue, with the current trace. It is stored when this returns; False
        when a job with this id was there already, within two minutes.

        Raises: NoCapacity when the queue is full, RequestTooLarge, Unavailable, DeadlineExceeded.
        """
        deadline_unix_s = effective_deadline_unix_s(PUBLISH_TIMEOUT_S)
        payload = message.SerializeToString()
        headers = trace_headers() | {"Nats-Msg-Id": msg_id}
        try:
            reply = await self._store(subject, payload, headers, deadline_unix_s)
        except Unavailable:
            await self.ensure()
            reply = await self._store(subject, payload, headers, deadline_unix_s)
        raise_for_error(reply)
        return not reply.get("duplicate", False)

    async def consumer(self, subject: str, durable: str) -> QueueConsumer:
        """A reader of one subject; all workers that name the same `durable` share its jobs.

        Raises: as `ensure`.
        """
        consumer = QueueConsumer(
            self._connection, self, self._stream, subject, durable, self._ack_wait_s
        )
        await consumer.ensure()
        return consumer

    async def depth(self) -> int:
        """Jobs not acknowledged yet, those being worked on included.

        Raises: Unavailable, DeadlineExceeded.
        """
        return await self._api.num_messages(self._stream)

    async def _store(
        self, subject: str, payload: bytes, headers: dict[str, str], deadline_unix_s: float
    ) -> dict[str, Any]:
        msg = await self._connection.request(
            subject,
            payload,
            headers,
            timeout_s=deadline_unix_s - time.time(),
            absent_timeout_s=ABSENT_TIMEOUT_S,
        )
        return parse_api_reply(msg.data)


@dataclass
class _Inbox:
    """Where the broker delivers what one consumer asked for."""

    subject: str
    subscription: Subscription
    messages: asyncio.Queue[Msg | None]


class QueueConsumer:
    """Pulls jobs; never holds more than were asked for."""

    def __init__(
        self,
        connection: BrokerConnection,
        queue: WorkQueue,
        stream: str,
        subject: str,
        durable: str,
        ack_wait_s: float,
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._stream = stream
        self._ack_wait_s = ack_wait_s
        self._config = {
            "durable_name": durable,
            "filter_subject": subject,
            "ack_policy": "explicit",
            "ack_wait": _nanos(ack_wait_s),
            "max_deliver": -1,
            "max_ack_pending": 8192,
            "deliver_policy": "all",
            "replay_policy": "instant",
        }
        self._next_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._inbox: _Inbox | None = None
        self._lock = asyncio.Lock()
        connection.on_disconnect(self._wake)

    async def ensure(self) -> None:
        """Stream and consumer exist. Raises: as `WorkQueue.ensure`."""
        await self._queue.ensure()
        await JetStreamApi(self._connection).ensure_consumer(self._stream, self._config)

    async def pull(self, max_jobs: int, timeout_s: float) -> list[LeasedJob]:
        """Up to `max_jobs` jobs as soon as there is one; [] after `timeout_s` without any, also
        while the broker is away. Cancelling it loses no job."""
        until_s = time.monotonic() + timeout_s
        async with self._lock:
            try:
                while True:
                    left_s = max(0.0, until_s - time.monotonic())
                    jobs = await self._try(max_jobs, min(left_s, POLL_SLICE_S))
                    if jobs or left_s == 0.0:
                        return jobs
            except asyncio.CancelledError:
                self._abandon()
                raise

    async def close(self) -> None:
        """Give back what was delivered but not pulled."""
        self._abandon()

    async def _try(self, max_jobs: int, wait_s: float) -> list[LeasedJob]:
        """What is there now, else the next job within `wait_s`. Broker trouble counts as none."""
        try:
            jobs: list[LeasedJob] = []
            if max_jobs > 1 or wait_s == 0.0:
                jobs = await self._fetch(max_jobs, expires_s=0.0)
            if not jobs and wait_s > 0.0:
                jobs = await self._fetch(1, expires_s=wait_s)
            return jobs
        except ServingError:
            await asyncio.sleep(min(REPAIR_PAUSE_S, wait_s))
            return []

    async def _fetch(self, max_jobs: int, *, expires_s: float) -> list[LeasedJob]:
        """One pull request: what is there now (`expires_s` 0), or the next job to come."""
        await self._connection.wait_connected(expires_s)
        inbox = self._inbox = self._inbox or await self._open_inbox()
        limit = {"expires": _nanos(expires_s)} if expires_s > 0 else {"no_wait": True}
        request = json.dumps({"batch": max_jobs, **limit}).encode()
        await self._connection.publish(self._next_subject, request, reply=inbox.subject)
        jobs: list[LeasedJob] = []
        try:
            async with asyncio.timeout(expires_s + REPLY_GRACE_S):
                while len(jobs) < max_jobs:
                    msg = await inbox.messages.get()
                    if msg is None or not _is_job(msg):
                        await self._on_status(msg)
                        break
                    jobs.append(self._lease(msg))
        except TimeoutError:
            self._abandon()
        except asyncio.CancelledError:
            for job in jobs:
                self._connection.background(_give_back(job))
            raise
        return jobs

    def _lease(self, msg: Msg) -> LeasedJob:
        return LeasedJob(self._connection, msg, ack_wait_s=self._ack_wait_s)

    async def _on_status(self, msg: Msg | None) -> None:
        """Statuses end a pull request: 404 and 408 say that there was nothing, all others that the
        consumer must be looked after. None: the connection broke, and the request with it."""
        if msg is None:
            await self._drop_inbox()
            return
        status = str((msg.headers or {}).get("Status", ""))
        if status in ("404", "408"):
            return
        log.info("repairing the queue consumer", extra={"status": status})
        self._abandon()
        await asyncio.sleep(REPAIR_PAUSE_S)
        await self.ensure()

    async def _open_inbox(self) -> _Inbox:
        messages: asyncio.Queue[Msg | None] = asyncio.Queue()

        async def on_message(msg: Msg) -> None:
            messages.put_nowait(msg)

        subject = self._connection.client.new_inbox()
        subscription = await self._connection.subscribe(subject, on_message)
        return _Inbox(subject, subscription, messages)

    def _wake(self) -> None:
        if self._inbox is not None:
            self._inbox.messages.put_nowait(None)

    async def _drop_inbox(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await inbox.subscription.unsubscribe()

    def _abandon(self) -> None:
        """Drop the pull request under way; a job that it brings after all goes back at once."""
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            self._connection.background(self._drain(inbox))

    async def _drain(self, inbox: _Inbox) -> None:
        try:
            await inbox.subscription.drain()  # type: ignore[no-untyped-call]
        except (nats.errors.Error, OSError):
            return
        while not inbox.messages.empty():
            msg = inbox.messages.get_nowait()
            if msg is not None and _is_job(msg):
                await _give_back(self._lease(msg))


async def _give_back(job: LeasedJob) -> None:
    await job.nak()


def _is_job(msg: Msg) -> bool:
    return bool(msg.reply.startswith("$JS.ACK."))


def _nanos(seconds: float) -> int:
    return int(seconds * 1e9)
