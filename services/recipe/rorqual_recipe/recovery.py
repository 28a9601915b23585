"""Fetching tokens that were sent and did not arrive, and noticing generations that went silent."""

from collections.abc import Awaitable, Callable
from typing import Any

from rorqual_runtime import subjects
from rorqual_runtime.errors import ServingError, Unavailable
from rorqual_runtime.service import ServiceContext

from rorqual_recipe.convert import ResendReply, ResendRequest
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.stream_table import StreamTable
from rorqual_recipe.streams import RequestStream

RETRY_PAUSE_S = 0.1
ABSENT_S = 0.2
MAX_OUTAGES = 60
"""Tries made without a bus before a stream fails; each takes up to `resend_timeout_s`."""


class Recovery:
    """Asks the decode instance of a choice for what is missing, one request a choice at a time."""

    def __init__(
        self,
        ctx: ServiceContext,
        settings: RecipeSettings,
        streams: StreamTable,
        on_recovered: Callable[[RequestStream, Any], Awaitable[None]],
        on_lost: Callable[[RequestStream, int, ServingError], None],
    ) -> None:
        self._ctx = ctx
        self._settings = settings
        self._streams = streams
        self._on_recovered = on_recovered
        self._on_lost = on_lost

    def fetch_missed(self, stream: RequestStream, choice_index: int) -> None:
        """Start fetching in the background, unless that is under way."""
        choice = stream.choices[choice_index]
        if not choice.is_resending and choice.order.decode_id:
            choice.is_resending = True
            self._ctx.track(self._fetch(stream, choice_index))

    def probe_stalled(self, now_s: float) -> None:
        """Ask after every choice that has begun and has been silent for too long."""
        for stream in self._streams:
            for index, choice in enumerate(stream.choices):
                silent_s = now_s - choice.last_news_s
                if not choice.is_finished and silent_s > self._settings.stall_probe_s:
                    choice.last_news_s = now_s
                    self.fetch_missed(stream, index)

    async def _fetch(self, stream: RequestStream, choice_index: int) -> None:
        """Ask until nothing more is there: what does not fit a message comes in several."""
        choice = stream.choices[choice_index]
        run = choice.order.run
        was_catching_up = stream.is_catching_up
        error: ServingError | None = None
        try:
            while await self._fetch_part(stream, choice_index):
                pass
        except ServingError as err:
            error = err
        finally:
            choice.is_resending = False
        if error is not None and choice.order.run == run and self._is_wanted(stream, choice_index):
            self._on_lost(stream, choice_index, error)
        if was_catching_up and not stream.is_catching_up:
            self._fetch_what_waited(stream)

    async def _fetch_part(self, stream: RequestStream, choice_index: int) -> bool:
        """Whether there may be more. Raises: ServingError when decode can't be asked."""
        order = stream.choices[choice_index].order
        if not order.decode_id:
            return False  # lost meanwhile, and on its way to another instance
        reply = await self._ask(stream, choice_index)
        if not self._is_wanted(stream, choice_index):
            return False
        num_known = order.next_seq
        await self._on_recovered(stream, reply.delta)
        num_new = order.next_seq - num_known
        has_more = num_new > 1 or (num_new > 0 and order.has_gap)
        return has_more and self._is_wanted(stream, choice_index)

    def _fetch_what_waited(self, stream: RequestStream) -> None:
        """Choices that were ahead have taken only a part of what there was for them."""
        for index in range(len(stream.choices)):
            if self._is_wanted(stream, index):
                self.fetch_missed(stream, index)

    async def _ask(self, stream: RequestStream, choice_index: int) -> ResendReply:
        """Tries count while the bus is there, and has been for long enough that decode is back on
        it, too."""
        order = stream.choices[choice_index].order
        decode_id = order.decode_id
        num_tries = num_outages = 0
        while True:
            request = ResendRequest(
                request_id=stream.request_id, choice_index=choice_index, from_seq=order.next_seq
            )
            was_settled = self._ctx.bus.is_settled
            try:
                return await self._ctx.bus.request(
                    subjects.decode_resend(decode_id),
                    request,
                    ResendReply,
                    timeout_s=self._settings.resend_timeout_s,
                    absent_timeout_s=ABSENT_S,
                )
            except ServingError as err:
                is_try = was_settled and self._ctx.bus.is_settled
                num_tries, num_outages = num_tries + is_try, num_outages + (not is_try)
                is_last = num_tries >= self._settings.resend_attempts
                is_last = is_last or num_outages >= MAX_OUTAGES
                is_last = is_last or order.decode_id != decode_id  # it goes on elsewhere
                if is_last or not err.retryable or not self._is_wanted(stream, choice_index):
                    raise Unavailable(f"the generation was lost: {err.message}") from err
            await self._ctx.clock.sleep(RETRY_PAUSE_S)

    def _is_wanted(self, stream: RequestStream, choice_index: int) -> bool:
        current = self._streams.get(stream.request_id) is stream
        return current and not stream.choices[choice_index].is_finished
