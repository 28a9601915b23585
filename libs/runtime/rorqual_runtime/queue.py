"""The work queue: jobs that survive broker and workers, each held by one worker at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from google.protobuf.message import Message

from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.consumer import QueueConsumer
from rorqual_runtime.context import effective_deadline_s, trace_headers
from rorqual_runtime.errors import DeadlineExceeded, Unavailable
from rorqual_runtime.jetstream import JetStreamApi, parse_api_reply, raise_for_error
from rorqual_runtime.leases import ABSENT_TIMEOUT_S, LeasedJob
from rorqual_runtime.patience import Patience

__all__ = ["LeasedJob", "QueueConsumer", "WorkQueue"]

ACK_WAIT_S = 10.0
MAX_JOBS = 100_000
MAX_JOB_AGE_S = 3600.0
DUPLICATE_WINDOW_S = 120.0
MAX_DEAD_LETTERS = 10_000
MAX_DEAD_LETTER_AGE_S = 3 * 86_400.0
PUBLISH_TIMEOUT_S = 5.0
RETRY_PAUSE_S = 0.1
STORE_AGAIN_S = 2.0
"""A stream that can't be written gives no answer: a job is sent again, to be stored once."""


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

    async def publish(
        self, subject: str, message: Message, *, msg_id: str, timeout_s: float = PUBLISH_TIMEOUT_S
    ) -> bool:
        """Put a job on the queue, with the current trace. It is stored when this returns; False
        when a job with this id was there already, within two minutes.

        Raises: NoCapacity when the queue is full, RequestTooLarge, Unavailable, DeadlineExceeded.
        """
        deadline_s = effective_deadline_s(timeout_s)
        payload = message.SerializeToString()
        headers = trace_headers() | {"Nats-Msg-Id": msg_id}
        while True:
            try:
                reply = await self._store(subject, payload, headers, deadline_s)
                break
            except Unavailable:  # a broker that is only just back has no stream yet, or none at all
                if deadline_s - time.monotonic() <= RETRY_PAUSE_S:
                    raise
            await asyncio.sleep(RETRY_PAUSE_S)
            with contextlib.suppress(Unavailable, DeadlineExceeded):
                await self.ensure()
        raise_for_error(reply)
        return not reply.get("duplicate", False)

    async def consumer(self, subject: str, durable: str) -> QueueConsumer:
        """A reader of one subject; all workers that name the same `durable` share its jobs.

        Raises: as `ensure`.
        """
        consumer = QueueConsumer(
            self._connection,
            ensure_stream=self.ensure,
            stream=self._stream,
            subject=subject,
            durable=durable,
            ack_wait_s=self._ack_wait_s,
        )
        await consumer.ensure()
        return consumer

    async def depth(self) -> int:
        """Jobs not acknowledged yet, those being worked on included.

        Raises: Unavailable, DeadlineExceeded.
        """
        return await self._api.num_messages(self._stream)

    async def _store(
        self, subject: str, payload: bytes, headers: dict[str, str], deadline_s: float
    ) -> dict[str, Any]:
        patience = Patience(deadline_s - time.monotonic(), ABSENT_TIMEOUT_S)
        msg = await self._connection.ask(
            subject, payload, lambda _left_s: headers, patience, again_s=STORE_AGAIN_S
        )
        return parse_api_reply(msg.data)


def _nanos(seconds: float) -> int:
    return int(seconds * 1e9)
