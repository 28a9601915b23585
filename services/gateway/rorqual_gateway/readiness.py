"""What the fleet says about itself: who is there, and with which load."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rorqual_runtime.clock import Clock

from rorqual_gateway.convert import LoadReport

MAX_INSTANCES = 1024


@dataclass(frozen=True, slots=True)
class Seen:
    """The last report of an instance."""

    at_s: float
    report: LoadReport


class FleetView:
    """Last news of every instance; old news count as absence."""

    def __init__(self, clock: Clock, *, stale_after_s: float) -> None:
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._seen: dict[tuple[str, str], Seen] = {}

    def note(self, report: LoadReport) -> None:
        """An instance has reported."""
        now_s = self._clock.monotonic_s()
        self._seen[report.service, report.instance_id] = Seen(now_s, report)
        if len(self._seen) > MAX_INSTANCES:
            self._forget_stale(now_s)

    def missing(self, required: Sequence[str]) -> list[str]:
        """Required services of which no instance takes work."""
        present = {seen.report.service for seen in self._fresh() if not seen.report.draining}
        return [service for service in required if service not in present]

    def live(self, service: str) -> list[str]:
        """Instances of a service that take work, sorted."""
        return sorted(
            seen.report.instance_id
            for seen in self._fresh()
            if seen.report.service == service and not seen.report.draining
        )

    def instances(self) -> Iterator[tuple[float, LoadReport]]:
        """Age in seconds and content of every instance's last report, by service and id."""
        now_s = self._clock.monotonic_s()
        for seen in sorted(self._fresh(), key=lambda s: (s.report.service, s.report.instance_id)):
            yield now_s - seen.at_s, seen.report

    def _fresh(self) -> list[Seen]:
        self._forget_stale(self._clock.monotonic_s())
        return list(self._seen.values())

    def _forget_stale(self, now_s: float) -> None:
        oldest_s = now_s - self._stale_after_s
        self._seen = {key: seen for key, seen in self._seen.items() if seen.at_s >= oldest_s}
