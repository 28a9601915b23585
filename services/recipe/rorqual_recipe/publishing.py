"""What leaves this service unasked: event batches and cancels."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import RequestTooLarge, ServingError
from rorqual_runtime.logs import get_logger

from rorqual_recipe import convert
from rorqual_recipe.convert import CancelRequest

log = get_logger(__name__)

Outbox = defaultdict[str, list[Any]]
"""Events by gateway id."""


class EventPublisher:
    """Sends, at most once; a receiver that missed something sees the gap in `seq`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def send(self, outbox: Mapping[str, Sequence[Any]]) -> None:
        """One batch a gateway, in halves when a batch is over the bus's limit."""
        for gateway_id, streams in outbox.items():
            await self._send_batch(gateway_id, streams)

    async def send_cancel(self, request: CancelRequest) -> None:
        """Tell everybody to let go."""
        try:
            await self._bus.publish(subjects.cancel(), request)
        except ServingError as err:
            log.warning("cancel not sent: %s", err, extra={"request_id": request.request_id})

    async def _send_batch(self, gateway_id: str, streams: Sequence[Any]) -> None:
        try:
            await self._bus.publish(
                subjects.gateway_events(gateway_id), convert.batch_to_wire(streams)
            )
        except RequestTooLarge:
            if len(streams) == 1:
                log.exception("an event is too large to send")
                return
            middle = len(streams) // 2
            await self._send_batch(gateway_id, streams[:middle])
            await self._send_batch(gateway_id, streams[middle:])
        except ServingError as err:
            log.warning("events not sent: %s", err, extra={"gateway_id": gateway_id})
