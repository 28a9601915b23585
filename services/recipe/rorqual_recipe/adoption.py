"""Answers that another instance began: its tokens are listened to, what was missed is fetched."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.discovery import discover
from rorqual_runtime.errors import ServingError, Unavailable
from rorqual_runtime.logs import get_logger
from rorqual_runtime.service import ServiceContext

from rorqual_recipe.choices import TakeOver
from rorqual_recipe.convert import ResendReply, ResendRequest, TokenBatch
from rorqual_recipe.recovery import Recovery
from rorqual_recipe.stream_table import StreamTable
from rorqual_recipe.streams import RequestStream

log = get_logger(__name__)

SEARCH_TIMEOUT_S = 1.0
DECODE_IDS_AGE_S = 1.0
LOST_PROMPT_S = 30.0


class Adoption:
    """Subscribes to a lost instance's tokens for as long as an answer of it goes on here."""

    def __init__(
        self,
        ctx: ServiceContext,
        streams: StreamTable,
        recovery: Recovery,
        on_tokens: Callable[[TokenBatch, MessageContext], Awaitable[None]],
        on_lost: Callable[[RequestStream, int, ServingError], None],
    ) -> None:
        self._ctx = ctx
        self._streams = streams
        self._recovery = recovery
        self._on_tokens = on_tokens
        self._on_lost = on_lost
        self._subscriptions: dict[str, Any] = {}
        self._subscribing = asyncio.Lock()
        self._searching = asyncio.Lock()
        self._known_ids: Sequence[str] = ()
        self._ids_expire_s = 0.0

    async def adopt(
        self, stream: RequestStream, taken_over: TakeOver, *, held_prompt: bool = False
    ) -> None:
        """Listen first, then ask decode for everything from the first token on.

        held_prompt: the lost instance held the prompt for prefill to fetch.
        """
        lost_id = taken_over.lost_recipe_id
        log.warning("answer taken over", extra={"request_id": stream.request_id, "from": lost_id})
        await self._listen(lost_id)
        if all(choice.order.decode_id for choice in stream.choices):
            self._fetch(stream)
        else:
            self._ctx.track(self._search(stream, held_prompt=held_prompt))

    async def _listen(self, lost_id: str) -> None:
        """Once, however many answers it left behind."""
        async with self._subscribing:
            if lost_id != self._ctx.instance_id and lost_id not in self._subscriptions:
                self._subscriptions[lost_id] = await self._ctx.bus.subscribe(
                    subjects.recipe_tokens(lost_id), TokenBatch, self._on_tokens
                )

    @property
    def lost_ids(self) -> Sequence[str]:
        """Instances whose tokens are listened to here."""
        return list(self._subscriptions)

    async def let_go(self) -> None:
        """Stop listening for instances none of whose answers is left."""
        wanted = {s.taken_over.lost_recipe_id for s in self._streams if s.taken_over}
        for lost_id in set(self._subscriptions) - wanted:
            await self._subscriptions.pop(lost_id).unsubscribe()

    def _fetch(self, stream: RequestStream) -> None:
        for index in range(len(stream.choices)):
            self._recovery.fetch_missed(stream, index)

    async def _search(self, stream: RequestStream, *, held_prompt: bool) -> None:
        """Find who generates a choice whose tokens nobody has seen; they may all be out already.

        None has it while it waits for prefill: its first tokens will tell. A prompt that prefill
        has not fetched yet is gone, and so may be the news of that.
        """
        for decode_id in await self._fresh_decode_ids():
            for index, choice in enumerate(stream.choices):
                if not choice.order.decode_id and await self._has(decode_id, stream, index):
                    choice.order.decode_id = decode_id
        self._fetch(stream)
        if held_prompt:
            await self._ctx.clock.sleep(LOST_PROMPT_S)
            lost = Unavailable("the prompt was lost before it was read")
            for index, choice in enumerate(stream.choices):
                if not choice.order.decode_id:
                    self._on_lost(stream, index, lost)

    async def _has(self, decode_id: str, stream: RequestStream, index: int) -> bool:
        request = ResendRequest(request_id=stream.request_id, choice_index=index, from_seq=0)
        try:
            await self._ctx.bus.request(
                subjects.decode_resend(decode_id),
                request,
                ResendReply,
                timeout_s=SEARCH_TIMEOUT_S,
                absent_timeout_s=0.0,
            )
        except ServingError:
            return False
        return True

    async def _fresh_decode_ids(self) -> Sequence[str]:
        """Looked up once for all answers that are taken over at about the same time."""
        async with self._searching:
            now_s = self._ctx.clock.monotonic_s()
            if now_s >= self._ids_expire_s:
                self._known_ids = await self._decode_ids()
                self._ids_expire_s = now_s + DECODE_IDS_AGE_S
            return self._known_ids

    async def _decode_ids(self) -> Sequence[str]:
        instances = await discover(self._ctx.bus.client)
        return [instance.id for instance in instances if instance.service == "decode"]
