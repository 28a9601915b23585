"""Finding a decode instance that takes a generation with its KV: from prefill, or from another
decode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from rorqual_proto.v1 import decode_pb2, router_pb2

from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import (
    DeadlineExceeded,
    ErrorCode,
    NoCapacity,
    ServingError,
    Unavailable,
)

_FIRST_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.5
_MAX_FAULTS = 3
_PROBE_S = 2.0
_ABSENT_S = 0.05

_ELSEWHERE = frozenset(
    {
        ErrorCode.NO_CAPACITY,
        ErrorCode.DRAINING,
        ErrorCode.UNAVAILABLE,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.UNSUPPORTED,
    }
)
_FAULT = frozenset({ErrorCode.STALE_TICKET, ErrorCode.CORRUPT, ErrorCode.INTERNAL})
"""A broken transfer or a bug: the job itself may be the cause, so tries are few."""


class AfterRefusal(Enum):
    """What a refused handover leads to."""

    TRY_ELSEWHERE = "try elsewhere"
    TRY_AGAIN = "something broke: a few more tries, here or elsewhere"
    GIVE_UP = "no instance will take it"


def decide_after_refusal(code: ErrorCode, num_faults: int) -> AfterRefusal:
    """Next move after a decode instance answered with this code.

    num_faults: tries of this handover that broke something so far, this one included.
    """
    if code in _ELSEWHERE:
        return AfterRefusal.TRY_ELSEWHERE
    if code in _FAULT and num_faults < _MAX_FAULTS:
        return AfterRefusal.TRY_AGAIN
    return AfterRefusal.GIVE_UP


class DecodeFleet(Protocol):
    """Router and decode instances as a handover sees them."""

    async def place(self, excluded_ids: Iterable[str]) -> str:
        """Id of the decode instance to ask. Raises: ServingError."""
        ...

    async def offer(self, decode_id: str) -> None:
        """Ask it to take the generation; returns once it has. Idempotent. Raises: ServingError."""
        ...


@dataclass(slots=True)
class Handover:
    """A generation's search for a decode instance, until one has it or the time is up."""

    fleet: DecodeFleet
    keep_alive: Callable[[], None]
    """Called before each try; extends what the tickets' leases have left."""
    waits: bool = True
    """Who has refused is asked again once all have; else the search ends then."""
    excluded_ids: set[str] = field(default_factory=set)
    num_faults: int = 0
    num_tries: int = 0
    last_error: ServingError | None = None
    _pause_s: float = _FIRST_PAUSE_S

    async def run(self, first_placement: Awaitable[str], timeout_s: float) -> str:
        """Id of the instance that took it.

        Raises: NoCapacity or DeadlineExceeded after timeout_s; the refusal itself when it is final.
        """
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                placement: Awaitable[str] | None = first_placement
                while True:
                    if (decode_id := await self._try_once(placement)) is not None:
                        return decode_id
                    placement = None
        except TimeoutError:
            raise self._out_of_time(timeout_s) from None

    async def _try_once(self, placement: Awaitable[str] | None) -> str | None:
        """One placement and one offer; None when another round makes sense."""
        self.num_tries += 1
        self.keep_alive()
        try:
            decode_id = await (placement or self.fleet.place(self.excluded_ids))
        except ServingError as err:
            await self._nobody_now(err)
            return None
        try:
            await self.fleet.offer(decode_id)
        except ServingError as err:
            self._refused(decode_id, err)
            return None
        return decode_id

    async def _nobody_now(self, err: ServingError) -> None:
        """No placement: after a pause those who refused may be asked again."""
        if not self.waits or (not err.retryable and err.code != ErrorCode.DEADLINE_EXCEEDED):
            raise err
        if self.last_error is None or err.retryable:
            self.last_error = err
        self.excluded_ids.clear()
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)

    def _refused(self, decode_id: str, err: ServingError) -> None:
        self.last_error = err
        self.num_faults += err.code in _FAULT
        after = decide_after_refusal(err.code, self.num_faults)
        if after is AfterRefusal.GIVE_UP:
            raise err
        self.excluded_ids.add(decode_id)

    def _out_of_time(self, timeout_s: float) -> ServingError:
        if self.last_error is not None and self.last_error.retryable:
            return NoCapacity(f"no decode instance took the generation: {self.last_error.message}")
        return DeadlineExceeded(f"no decode instance took the generation in {timeout_s:.1f} s")


async def ask_for_place(bus: Bus, request: router_pb2.PlaceRequest, timeout_s: float) -> str:
    """Id of the decode instance that the router names. Raises: ServingError."""
    reply = await bus.request(
        subjects.router_place(), request, router_pb2.PlaceReply, timeout_s=timeout_s
    )
    if not subjects.is_token(reply.placement.decode_id):
        raise Unavailable("the router named no decode instance")
    return str(reply.placement.decode_id)


async def offer_generation(
    bus: Bus, decode_id: str, offer: decode_pb2.HandoverRequest, timeout_s: float
) -> None:
    """Returns once the instance has taken it; then its reader has been told, too. Idempotent.

    Raises: ServingError.
    """

    async def ask(probe_s: float) -> None:
        await bus.request(
            subjects.decode_handover(decode_id),
            offer,
            decode_pb2.HandoverReply,
            timeout_s=probe_s,
            absent_timeout_s=_ABSENT_S,
            outlasts_outages=True,  # it may have taken it: another one must not, too
        )

    await ask_until_answered(ask, timeout_s=timeout_s, probe_s=_PROBE_S)


async def ask_until_answered(
    ask: Callable[[float], Awaitable[None]], *, timeout_s: float, probe_s: float
) -> None:
    """Repeat an idempotent request every probe_s until it is answered or timeout_s is over.

    A dead instance has no responder by the second try, so its death costs probe_s, not timeout_s.

    Raises: ServingError from ask; DeadlineExceeded.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise Unavailable(f"the decode instance did not answer within {timeout_s:.1f} s")
        try:
            return await ask(min(probe_s, left_s))
        except DeadlineExceeded:
            continue
