"""Answers that another instance began: its tokens are listened to, what was missed is fetched."""

from collections.abc import Awaitable, Callable
from typing import Any

from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus, MessageContext
from rorqual_runtime.logs import get_logger

from rorqual_recipe.convert import TokenBatch
from rorqual_recipe.recovery import Recovery
from rorqual_recipe.stream_table import StreamTable
from rorqual_recipe.streams import RequestStream, TakeOver

log = get_logger(__name__)


class Adoption:
    """Subscribes to a lost instance's tokens for as long as an answer of it goes on here."""

    def __init__(
        self,
        bus: Bus,
        own_id: str,
        streams: StreamTable,
        recovery: Recovery,
        on_tokens: Callable[[TokenBatch, MessageContext], Awaitable[None]],
    ) -> None:
        self._bus = bus
        self._own_id = own_id
        self._streams = streams
        self._recovery = recovery
        self._on_tokens = on_tokens
        self._subscriptions: dict[str, Any] = {}

    async def adopt(self, stream: RequestStream, taken_over: TakeOver) -> None:
        """Listen first, then ask decode for everything from the first token on."""
        lost_id = taken_over.lost_recipe_id
        log.warning("answer taken over", extra={"request_id": stream.request_id, "from": lost_id})
        if lost_id != self._own_id and lost_id not in self._subscriptions:
            self._subscriptions[lost_id] = await self._bus.subscribe(
                subjects.recipe_tokens(lost_id), TokenBatch, self._on_tokens
            )
        for index in range(len(stream.choices)):
            self._recovery.fetch_missed(stream, index)

    async def let_go(self) -> None:
        """Stop listening for instances none of whose answers is left."""
        wanted = {s.taken_over.lost_recipe_id for s in self._streams if s.taken_over}
        for lost_id in set(self._subscriptions) - wanted:
            await self._subscriptions.pop(lost_id).unsubscribe()
