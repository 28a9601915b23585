"""Events of one request as its client gets them: complete, or a reason why not."""

from rorqual_runtime.errors import NotFound, QueueTimeout, ServingError, Unavailable

from rorqual_gateway.service import GatewayService
from rorqual_gateway.sinks import Event, EventSink

GAP_PAUSE_S = 0.2


class EventFeed:
    """Takes events from the sink, and asks recipe again for those that did not arrive.

    Silence counts as a sign of loss too: recipe answers what it has, so a lost last event, a lost
    connection to the broker and a dead recipe are all noticed within seconds.
    """

    def __init__(
        self, gateway: GatewayService, sink: EventSink, request_id: str, recipe_id: str
    ) -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        self._clock = gateway.clock
        self._sink = sink
        self._request_id = request_id
        self._recipe_id = recipe_id
        now_s = self._clock.monotonic_s()
        self._started_s = now_s
        self._last_event_s: float | None = None
        self._last_answer_s = now_s

    async def next(self) -> list[Event]:
        """The next events in order; [] when nothing came for the keep-alive time.

        Raises: QueueTimeout, Unavailable when nothing will come any more.
        """
        keepalive_s = self._clock.monotonic_s() + self._settings.keepalive_s
        while True:
            left_s = keepalive_s - self._clock.monotonic_s()
            if left_s <= 0:
                return []
            pause_s = GAP_PAUSE_S if self._sink.has_gap else self._settings.silence_probe_s
            events = await self._sink.take(min(left_s, pause_s))
            if events:
                self._last_event_s = self._last_answer_s = self._clock.monotonic_s()
                return events
            self._check_bounds()
            if left_s > pause_s:
                await self._ask_again()

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
        try:
            events = await self._gateway.resend(
                self._recipe_id, self._request_id, self._sink.next_seq
            )
        except NotFound as err:
            raise Unavailable("the state of this answer was lost") from err
        except ServingError:
            return
        self._last_answer_s = self._clock.monotonic_s()
        for event in events:
            self._sink.push(event)
