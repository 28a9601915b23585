"""Router and decode instances over the bus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import Unavailable

from rorqual_prefill import convert
from rorqual_prefill.handover import ask_until_answered
from rorqual_prefill.job import Job

_PROBE_S = 2.0
_ABSENT_S = 0.05


@dataclass(frozen=True, slots=True)
class BusDecodeFleet:
    """Placement and offers of one job. `make_offer` gives the message with tickets as they are."""

    bus: Bus
    place_timeout_s: float
    handover_timeout_s: float
    make_offer: Callable[[], Any] | None = None

    def offering(self, make_offer: Callable[[], Any]) -> BusDecodeFleet:
        """The same fleet, able to offer what make_offer gives."""
        return BusDecodeFleet(self.bus, self.place_timeout_s, self.handover_timeout_s, make_offer)

    async def place(self, job: Job, excluded_ids: Iterable[str]) -> str:
        """See `handover.DecodeFleet`."""
        reply = await self.bus.request(
            subjects.router_place(),
            convert.place_to_wire(job, excluded_ids),
            convert.PlaceReplyMessage,
            timeout_s=self.place_timeout_s,
        )
        if not subjects.is_token(reply.placement.decode_id):
            raise Unavailable("the router named no decode instance")
        return str(reply.placement.decode_id)

    async def announce(
        self, job: Job, token_id: int, *, num_cached_tokens: int, miss_reason: str
    ) -> None:
        """Tell the client's recipe the first token while the prompt is still handed over."""
        batch = convert.first_token_to_wire(
            job, token_id, num_cached_tokens=num_cached_tokens, miss_reason=miss_reason
        )
        await self.bus.publish(subjects.recipe_tokens(job.recipe_id), batch)

    async def offer(self, decode_id: str) -> None:
        """See `handover.DecodeFleet`."""
        assert self.make_offer is not None, "nothing to offer yet"
        subject, message = subjects.decode_handover(decode_id), self.make_offer()

        async def ask(timeout_s: float) -> None:
            await self.bus.request(
                subject,
                message,
                convert.HandoverReplyMessage,
                timeout_s=timeout_s,
                absent_timeout_s=_ABSENT_S,
                outlasts_outages=True,  # it may have taken the prompt: another one must not, too
            )

        await ask_until_answered(ask, timeout_s=self.handover_timeout_s, probe_s=_PROBE_S)
