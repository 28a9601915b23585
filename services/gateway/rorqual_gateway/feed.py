"""Events of one request as its client gets them: complete, or a reason why not."""

from collections.abc import Awaitable, Callable

from rorqual_runtime.errors import NotFound, QueueTimeout, ServingError, Unavailable

from rorqual_gateway.errors import RequestFailed
from rorqual_gateway.service import GatewayService
from rorqual_gateway.sinks import Event, EventSink

GAP_PAUSE_S = 0.2
MAX_TAKE_OVERS = 2

TakeOver = Callable[[str], Awaitable[str]]
"""Has another instance go on with an answer; from the id of the lost one to the new one's."""


class EventFeed:
    """Takes events from the sink, and asks recipe again for those that did not arrive.

    Silence counts as a sign of loss too: recipe answers what it has, so a lost last event, a lost
    connection to the broker and a dead recipe are all noticed within seconds.
    """

    def __init__(
        self,
        gateway: GatewayService,
        sink: EventSink,
        request_id: str,
        recipe_id: str,
        take_over: TakeOver | None = None,
    ) -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        self._clock = gateway.clock
        self._sink = sink
        self._request_id = request_id
        self._recipe_id = recipe_id
        self._take_over = take_over
        self._num_take_overs_left = MAX_TAKE_OVERS if take_over else 0
        self._unreachable_since_s: float | None = None
        now_s = self._clock.monotonic_s()
        self._must_attach = False
        self._started_s = now_s
        self._last_event_s: float | None = None
        self._last_answer_s = now_s

    async def attach(self) -> None:
        """Have an answer that is under way sent here from now on, from the next event on."""
        self._must_attach = True
        await self._ask_again()

    async def next(self) -> list[Event]:
        """The next events in order; [] when nothing came for the keep-alive time.

        Raises: QueueTimeout, Unavailable when nothing will come any more.
        """
        keepalive_s = self._clock.monotonic_s() + self._settings.keepalive_s
        while True:
            left_s = keepalive_s - self._clock.monotonic_s()
            if left_s <= 0:
                return []
            pause_s = self._pause_s()
            events = await self._sink.take(min(left_s, pause_s))
            if events:
                self._last_event_s = self._last_answer_s = self._clock.monotonic_s()
                self._unreachable_since_s = None
                return events
            self._check_bounds()
            if left_s > pause_s:
                await self._ask_again()

    def _pause_s(self) -> float:
        """Silence before recipe is asked."""
        is_urgent = self._sink.has_gap or self._must_attach
        if is_urgent or self._unreachable_since_s is not None:
            return GAP_PAUSE_S
        if self._last_event_s is None:
            return self._settings.silence_probe_s
        return min(self._settings.silence_probe_s, self._settings.begun_silence_probe_s)

    def _check_bounds(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._last_answer_s > self._settings.lost_after_s:
            raise Unavailable("the answer was lost on the way")
        if self._last_event_s is None:
            if now_s - self._started_s > self._settings.queue_timeout_s:
                raise QueueTimeout()
        elif now_s - self._last_event_s > self._settings.max_token_gap_s:
            raise Unavailable("the generation has gone silent")

    async def _ask_again(self) -> None:
        """Fetch what is missing; an instance that can't be reached is asked again later."""
        next_seq = self._sink.next_seq
        try:
            resent = await self._gateway.resend(
                self._recipe_id, self._request_id, next_seq, listens=self._must_attach
            )
        except NotFound as err:
            if self._sink.next_seq == next_seq:  # else the end has come, and was forgotten there
                await self._have_it_taken_over(err)
            return
        except ServingError as err:
            await self._note_unreachable(err)
            return
        self._last_answer_s = self._clock.monotonic_s()
        self._unreachable_since_s = None
        self._must_attach = False
        if resent.listener_id not in ("", self._gateway.instance_id):
            self._sink.superseded.set()
        for event in resent.events:
            self._sink.push(event)

    async def _note_unreachable(self, error: ServingError) -> None:
        now_s = self._clock.monotonic_s()
        if not self._gateway.is_settled:
            # It may be there, and cut off, or we are. The bound is that of a silent stream then.
            self._unreachable_since_s, self._last_answer_s = None, now_s
        elif self._unreachable_since_s is None:
            self._unreachable_since_s = now_s
        elif now_s - self._unreachable_since_s > self._patience_s(error):
            await self._have_it_taken_over(error)

    def _patience_s(self, error: ServingError) -> float:
        """With an instance that can't be reached: one that has gone answers nobody, one that is
        slow may yet answer us."""
        is_absent = isinstance(error, Unavailable)
        settings = self._settings
        absent_s = settings.take_over_absent_s if is_absent else settings.take_over_after_s
        return min(absent_s, settings.take_over_after_s)

    async def _have_it_taken_over(self, cause: ServingError) -> None:
        """Another instance of recipe goes on. Raises: Unavailable when none can."""
        can_go_on = self._num_take_overs_left > 0 and self._sink.position.is_exact
        if self._take_over is None or not can_go_on:
            if isinstance(cause, NotFound):
                raise Unavailable("the state of this answer was lost") from cause
            return
        next_seq = self._sink.next_seq
        try:
            new_id = await self._take_over(self._recipe_id)
        except RequestFailed as err:
            if self._sink.next_seq != next_seq:
                return
            raise Unavailable("the state of this answer was lost") from err
        except ServingError:
            return  # tried again, until the answer counts as lost
        if self._sink.next_seq != next_seq:
            return  # the first one is alive after all
        self._num_take_overs_left -= 1
        self._recipe_id = new_id
        self._must_attach = False
        self._sink.begin_take_over()
        self._unreachable_since_s = None
        await self._ask_again()
