"""Which services are there, by their load reports."""

from collections.abc import Sequence
from dataclasses import dataclass

from rorqual_runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class _Seen:
    at_s: float
    draining: bool


class FleetView:
    """Last news of every instance; old news count as absence."""

    def __init__(self, clock: Clock, *, stale_after_s: float) -> None:
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._seen: dict[tuple[str, str], _Seen] = {}

    def note(self, service: str, instance_id: str, *, draining: bool) -> None:
        """An instance has reported."""
        now_s = self._clock.monotonic_s()
        self._seen[service, instance_id] = _Seen(now_s, draining)
        if len(self._seen) > 1024:
            self._forget_stale(now_s)

    def missing(self, required: Sequence[str]) -> list[str]:
        """Required services of which no instance takes work."""
        self._forget_stale(self._clock.monotonic_s())
        present = {service for (service, _), seen in self._seen.items() if not seen.draining}
        return [service for service in required if service not in present]

    def live(self, service: str) -> list[str]:
        """Instances of a service that take work, sorted."""
        self._forget_stale(self._clock.monotonic_s())
        return sorted(
            instance_id
            for (name, instance_id), seen in self._seen.items()
            if name == service and not seen.draining
        )

    def _forget_stale(self, now_s: float) -> None:
        oldest_s = now_s - self._stale_after_s
        self._seen = {key: seen for key, seen in self._seen.items() if seen.at_s >= oldest_s}
