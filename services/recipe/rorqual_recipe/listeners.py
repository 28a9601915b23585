"""Who listens to each answer: one that nobody listens to goes on for a while, then ends."""

from dataclasses import dataclass

from rorqual_runtime.bus import Bus
from rorqual_runtime.clock import Clock

from rorqual_recipe.stream_table import StreamTable
from rorqual_recipe.streams import RequestStream

UNCLAIMED_S = 75.0
"""A gateway asks every few seconds after an answer that has not begun, once it is submitted, which
takes a minute at most. One that nobody asks after is the double of another's: its gateway had
missed our reply, and asked another instance."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """The last report of a gateway."""

    incarnation: int
    at_s: float


class Listeners:
    """A gateway says when the client of an answer is gone; one that died stops reporting, or
    reports as somebody new.

    patience_s: how long an answer goes on for a client that may come back, at any gateway.
    """

    def __init__(self, bus: Bus, clock: Clock, streams: StreamTable, *, patience_s: float) -> None:
        self._bus = bus
        self._clock = clock
        self._streams = streams
        self._patience_s = patience_s
        self._heard: dict[str, _Heard] = {}
        self._settled_s = clock.monotonic_s()

    def note_report(self, gateway_id: str, incarnation: int) -> None:
        """A gateway is alive. What its former self listened to, nobody does now."""
        now_s = self._clock.monotonic_s()
        last = self._heard.get(gateway_id)
        if last is not None and last.incarnation != incarnation:
            for stream in self._streams:
                if stream.gateway_id == gateway_id and stream.attached_s <= last.at_s:
                    self._leave(stream, now_s)
        self._heard[gateway_id] = _Heard(incarnation, now_s)

    def attach(self, stream: RequestStream, gateway_id: str) -> None:
        """From now on this gateway listens."""
        stream.gateway_id = gateway_id
        stream.attached_s = stream.asked_s = self._clock.monotonic_s()
        stream.left_s = None

    def asked_after(self, stream: RequestStream) -> None:
        """Its gateway waits for it."""
        stream.asked_s = self._clock.monotonic_s()

    def leave(self, stream: RequestStream, gateway_id: str) -> None:
        """This gateway does no more, unless another one does already."""
        if stream.gateway_id == gateway_id:
            self._leave(stream, self._clock.monotonic_s())

    def abandoned(self) -> list[RequestStream]:
        """Answers that nobody has come back for. Silence counts while the bus is there."""
        now_s = self._clock.monotonic_s()
        if not self._bus.is_settled:
            self._settled_s = now_s
            self._heard = {g: _Heard(h.incarnation, now_s) for g, h in self._heard.items()}
        silent = {g for g, h in self._heard.items() if now_s - h.at_s > self._patience_s}
        gone = [stream for stream in self._streams if self._is_over(stream, now_s, silent)]
        for gateway_id in silent:
            del self._heard[gateway_id]
        return gone

    def unclaimed(self) -> list[RequestStream]:
        """Doubles of answers that another instance writes; after `abandoned`, which has the time to
        end those whose gateway has died. Whose client has left is no double."""
        oldest_s = self._clock.monotonic_s() - max(UNCLAIMED_S, 2 * self._patience_s)
        if self._settled_s > oldest_s:
            return []
        waiting = [s for s in self._streams if not s.has_begun and s.left_s is None]
        return [stream for stream in waiting if stream.asked_s < oldest_s]

    def _is_over(self, stream: RequestStream, now_s: float, silent: set[str]) -> bool:
        if stream.left_s is not None and now_s - stream.left_s > self._patience_s:
            return True
        return stream.gateway_id in silent

    @staticmethod
    def _leave(stream: RequestStream, now_s: float) -> None:
        if stream.left_s is None:
            stream.left_s = now_s
