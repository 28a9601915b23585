"""Where emitted tokens go."""

from __future__ import annotations

from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus

from rorqual_decode import convert
from rorqual_decode.publisher import Slice


class BusTokenSink:
    """Token batches over the bus."""

    def __init__(self, bus: Bus, decode_id: str, incarnation: int) -> None:
        self._bus = bus
        self._decode_id = decode_id
        self._incarnation = incarnation

    @property
    def is_connected(self) -> bool:
        """False while the broker is away."""
        return self._bus.is_connected

    async def send(self, recipe_id: str, slices: list[Slice]) -> None:
        """Raises: Unavailable while the broker is away."""
        batch = convert.batch_to_wire(self._decode_id, self._incarnation, slices)
        await self._bus.publish(subjects.recipe_tokens(recipe_id), batch)
