"""One job from the work queue, held by lease until it is settled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import nats.errors
from google.protobuf.message import Message
from nats.aio.msg import Msg
from opentelemetry.context import Context

from rorqual_runtime import subjects
from rorqual_runtime.connection import BrokerConnection
from rorqual_runtime.context import trace_context
from rorqual_runtime.errors import Corrupt, DeadlineExceeded, ServingError, Unavailable
from rorqual_runtime.jetstream import parse_api_reply, raise_for_error
from rorqual_runtime.logs import get_logger
from rorqual_runtime.replies import parse_message

MAX_TRIES = 3
"""Workers that may begin a job. Keeping it in line is no try."""
MAX_DELIVERIES = 100
"""Of one job altogether: who keeps the line may forget how often the job was begun."""
FAILED_JOB_DELAY_S = 0.5
SETTLE_TIMEOUT_S = 2.0
ABSENT_TIMEOUT_S = 1.0
DEAD_REASON_HEADER = "Rorqual-Dead-Reason"
DEAD_SUBJECT_HEADER = "Rorqual-Dead-Subject"
DEAD_DELIVERIES_HEADER = "Rorqual-Num-Delivered"

log = get_logger(__name__)

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class LeaseHandle:
    """A lease as it travels from one holder to the next: whoever has it can renew and settle."""

    subject: str
    """Where the job lies on the queue."""
    lease_subject: str
    headers: dict[str, str]
    data: bytes
    num_begun: int
    """Workers that began it before, as far as the holder knows."""


class LeasedJob:
    """A job that is ours while we renew. Exactly one of `ack`, `nak`, `dead_letter` settles it.

    `async with job:` renews in the background; left without settling, by an exception or not, the
    job goes back to the queue.
    """

    def __init__(self, connection: BrokerConnection, msg: Msg, *, ack_wait_s: float) -> None:
        self._connection = connection
        self._msg = msg
        self._ack_wait_s = ack_wait_s
        self._renewer: asyncio.Task[None] | None = None
        self._held_until_s = self._next_expiry_s()
        self._message: Message | None = None
        self.is_settled = False
        metadata = msg.metadata
        self.num_delivered: int = metadata.num_delivered
        """1 on the first delivery."""
        self.num_begun = self.num_delivered - 1
        """Workers that began it before: everybody it was delivered to, unless told otherwise."""
        self.stream_seq: int = metadata.sequence.stream
        self.trace_context: Context = trace_context(msg.headers)
        """Of the publisher; the parent for the span of the work."""

    @classmethod
    def take_over(
        cls, connection: BrokerConnection, handle: LeaseHandle, *, ack_wait_s: float
    ) -> LeasedJob:
        """The job that another process held until now; renew it soon.

        Raises: Corrupt when the handle is none.
        """
        msg = Msg(
            connection.client,
            subject=handle.subject,
            reply=handle.lease_subject,
            data=handle.data,
            headers=dict(handle.headers),
        )
        try:
            job = cls(connection, msg, ack_wait_s=ack_wait_s)
        except (nats.errors.Error, ValueError, IndexError) as error:
            raise Corrupt(f"no lease: {handle.lease_subject[:100]!r}") from error
        job.num_begun = handle.num_begun
        return job

    @property
    def handle(self) -> LeaseHandle:
        """What another process needs to hold the job."""
        headers = dict(self._msg.headers or {})
        reply = str(self._msg.reply)
        return LeaseHandle(self.subject, reply, headers, self.data, self.num_begun)

    def let_go(self) -> None:
        """Another process holds it: neither renewed nor settled here any more."""
        self.is_settled = True

    @property
    def data(self) -> bytes:
        return bytes(self._msg.data)

    @property
    def subject(self) -> str:
        return str(self._msg.subject)

    @property
    def is_exhausted(self) -> bool:
        """It failed often enough: dead-letter it and tell its client."""
        return self.num_begun >= MAX_TRIES or self.num_delivered > MAX_DELIVERIES

    @property
    def is_lost(self) -> bool:
        """Not renewed in time: another worker may have it by now."""
        return not self.is_settled and time.monotonic() > self._held_until_s

    @property
    def message(self) -> Message:
        """What `decode` returned last."""
        assert self._message is not None, "decode the job first"
        return self._message

    def decode(self, message_type: type[M]) -> M:
        """Raises: Corrupt when the job is no such message; dead-letter it then."""
        message = parse_message(message_type, self.data)
        self._message = message
        return message

    async def ack(self) -> bool:
        """Done. False when the broker did not confirm: the job may be delivered again."""
        return await self._settle(b"+ACK")

    async def nak(self, delay_s: float = 0.0) -> bool:
        """Give it back, to be delivered again after `delay_s`. False when not confirmed: then that
        happens once the lease has expired."""
        return await self._settle(b"-NAK " + json.dumps({"delay": int(delay_s * 1e9)}).encode())

    async def dead_letter(self, reason: str) -> None:
        """Move it to the dead letters, never to be delivered again.

        Raises: Unavailable, DeadlineExceeded, NoCapacity when it could not be moved; it then stays.
        """
        headers = {k: v for k, v in (self._msg.headers or {}).items() if not k.startswith("Nats-")}
        headers |= {
            "Nats-Msg-Id": f"{self._msg.metadata.stream}/{self.stream_seq}",
            DEAD_REASON_HEADER: " ".join(reason.split())[:300],
            DEAD_SUBJECT_HEADER: self.subject,
            DEAD_DELIVERIES_HEADER: str(self.num_delivered),
        }
        confirmation = await self._connection.request(
            subjects.dead_letters(),
            self.data,
            headers,
            timeout_s=SETTLE_TIMEOUT_S,
            absent_timeout_s=ABSENT_TIMEOUT_S,
        )
        raise_for_error(parse_api_reply(confirmation.data))
        log.warning("a job is dead-lettered", extra={"subject": self.subject, "reason": reason})
        await self._settle(b"+TERM")

    async def renew(self) -> None:
        """Hold it for another `ack_wait_s`. `async with` does it by itself."""
        with contextlib.suppress(ServingError):
            await self._connection.publish(self._msg.reply, b"+WPI", timeout_s=0.0)
            self._held_until_s = self._next_expiry_s()

    def _next_expiry_s(self) -> float:
        """A little early: the broker's clock for this lease started before ours."""
        return time.monotonic() + 0.9 * self._ack_wait_s

    async def __aenter__(self) -> LeasedJob:
        self._renewer = asyncio.get_running_loop().create_task(self._keep())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._renewer is not None:
            self._renewer.cancel()
        if not self.is_settled:
            delay_s = FAILED_JOB_DELAY_S if isinstance(error, Exception) else 0.0
            await self.nak(delay_s)

    async def _keep(self) -> None:
        while not self.is_settled:
            await asyncio.sleep(self._ack_wait_s / 3)
            await self.renew()

    async def _settle(self, verdict: bytes) -> bool:
        if self.is_settled:
            return True
        self.is_settled = True
        try:
            await self._connection.request(
                self._msg.reply,
                verdict,
                {},
                timeout_s=SETTLE_TIMEOUT_S,
                absent_timeout_s=ABSENT_TIMEOUT_S,
            )
        except (Unavailable, DeadlineExceeded):
            log.warning("a settled job was not confirmed", extra={"subject": self.subject})
            return False
        return True
