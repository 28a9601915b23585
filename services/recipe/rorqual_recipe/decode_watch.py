"""Noticing within half a second that a decode instance has gone, with all that ran there."""

from collections.abc import Awaitable, Callable
from typing import Any

from rorqual_policy.runs import Silence, SilenceParams, decide_silence
from rorqual_runtime import subjects
from rorqual_runtime.errors import NotFound, ServingError, Unavailable
from rorqual_runtime.service import ServiceContext

from rorqual_recipe.convert import ResendReply, ResendRequest
from rorqual_recipe.recovery import Recovery
from rorqual_recipe.stream_table import StreamTable
from rorqual_recipe.streams import RequestStream

TICK_S = 0.1
ANSWER_S = 1.0
AGAIN_S = 0.2
"""One that died with our question gives no answer; to the next one the broker does."""


class DecodeWatch:
    """An instance that runs something for us sends a batch with every step. One that has been
    silent is asked for the tokens of one of its generations; who is gone has nobody to answer."""

    def __init__(
        self,
        ctx: ServiceContext,
        streams: StreamTable,
        recovery: Recovery,
        on_answer: Callable[[RequestStream, Any], Awaitable[None]],
        on_lost: Callable[[RequestStream, int, ServingError], None],
        params: SilenceParams | None = None,
    ) -> None:
        self._ctx = ctx
        self._streams = streams
        self._recovery = recovery
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._params = params or SilenceParams()
        self._heard_s: dict[str, float] = {}
        self._asked: set[str] = set()

    def heard(self, decode_id: str) -> None:
        """It has sent something; a first token that prefill tells comes from none."""
        if subjects.is_token(decode_id):
            self._heard_s[decode_id] = self._ctx.clock.monotonic_s()

    async def run(self) -> None:
        """Look after all instances for ever; whoever is silent without a broker is not."""
        while True:
            await self._ctx.clock.sleep(TICK_S)
            if self._ctx.bus.is_settled:
                self._look()
            else:
                self._heard_s = dict.fromkeys(self._heard_s, self._ctx.clock.monotonic_s())

    def _look(self) -> None:
        now_s = self._ctx.clock.monotonic_s()
        for decode_id, heard_s in list(self._heard_s.items()):
            if now_s - heard_s < self._params.ask_s or decode_id in self._asked:
                continue
            if self._running_at(decode_id):
                self._asked.add(decode_id)
                self._ctx.track(self._ask(decode_id))
            else:
                del self._heard_s[decode_id]

    def _running_at(self, decode_id: str) -> list[tuple[RequestStream, int]]:
        return [
            (stream, index)
            for stream in self._streams
            for index, choice in enumerate(stream.choices)
            if choice.order.decode_id == decode_id and not choice.is_finished
        ]

    async def _ask(self, decode_id: str) -> None:
        try:
            await self._ask_for_tokens(decode_id)
        except NotFound:
            self.heard(decode_id)  # another process of that name, or it has forgotten this one
            for stream, index in self._running_at(decode_id):
                self._recovery.fetch_missed(stream, index)
        except Unavailable as err:
            self._judge(decode_id, err, is_absent=True)
        except ServingError as err:
            self._judge(decode_id, err, is_absent=False)
        finally:
            self._asked.discard(decode_id)

    async def _ask_for_tokens(self, decode_id: str) -> None:
        """Raises: NotFound; Unavailable when nobody is there; ServingError."""
        if not (running := self._running_at(decode_id)):
            return
        stream, index = running[0]
        request = ResendRequest(
            request_id=stream.request_id,
            choice_index=index,
            from_seq=stream.choices[index].order.next_seq,
        )
        reply = await self._ctx.bus.request(
            subjects.decode_resend(decode_id),
            request,
            ResendReply,
            timeout_s=ANSWER_S,
            absent_timeout_s=0.0,
            again_s=AGAIN_S,
        )
        self.heard(decode_id)
        if self._streams.get(stream.request_id) is stream:
            await self._on_answer(stream, reply.delta)

    def _judge(self, decode_id: str, error: ServingError, *, is_absent: bool) -> None:
        running = self._running_at(decode_id)
        heard_s = self._heard_s.get(decode_id)
        if not running or heard_s is None or not self._ctx.bus.is_settled:
            return
        silence = decide_silence(
            self._ctx.clock.monotonic_s() - heard_s,
            is_absent=is_absent,
            num_losses=min(stream.choices[index].num_losses for stream, index in running),
            params=self._params,
        )
        if silence is Silence.LOST:
            del self._heard_s[decode_id]
            for stream, index in running:
                self._on_lost(stream, index, error)
