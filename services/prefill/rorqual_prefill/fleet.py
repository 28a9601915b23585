"""Router, decode instances and recipe over the bus, as one job sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.handover import ask_for_place, offer_generation

from rorqual_prefill import convert
from rorqual_prefill.job import Job


@dataclass(frozen=True, slots=True)
class BusDecodeFleet:
    """Of every job: what is asked in its name goes out through `of`."""

    bus: Bus
    place_timeout_s: float
    handover_timeout_s: float

    def of(self, job: Job, make_offer: Callable[[], Any] | None = None) -> JobFleet:
        """For one job. make_offer: the message with tickets as they are; none needed to place."""
        return JobFleet(self, job, make_offer)

    async def announce(
        self, job: Job, token_id: int, *, num_cached_tokens: int, miss_reason: str
    ) -> None:
        """Tell the client's recipe the first token while the prompt is still handed over."""
        batch = convert.first_token_to_wire(
            job, token_id, num_cached_tokens=num_cached_tokens, miss_reason=miss_reason
        )
        await self.bus.publish(subjects.recipe_tokens(job.recipe_id), batch)


@dataclass(frozen=True, slots=True)
class JobFleet:
    """See `rorqual_runtime.handover.DecodeFleet`."""

    fleet: BusDecodeFleet
    job: Job
    make_offer: Callable[[], Any] | None

    async def place(self, excluded_ids: Iterable[str]) -> str:
        """Id of the decode instance to ask."""
        request = convert.place_to_wire(self.job, excluded_ids)
        return await ask_for_place(self.fleet.bus, request, self.fleet.place_timeout_s)

    async def offer(self, decode_id: str) -> None:
        """Ask it to take the prompt."""
        assert self.make_offer is not None, "nothing to offer yet"
        message = self.make_offer()
        await offer_generation(self.fleet.bus, decode_id, message, self.fleet.handover_timeout_s)
