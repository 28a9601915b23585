"""What came in lately, of several kinds, over all instances that count it."""

from rorqual_policy import (
    CounterSource,
    DemandWindow,
    InstanceReport,
    demand_per_s,
    observe_counter,
)


class Arrivals:
    """Counters that only grow, by kind, as rates."""

    def __init__(self, window_s: float, started_s: float) -> None:
        self._empty = DemandWindow(window_s, started_s)
        self._windows: dict[str, DemandWindow] = {}

    def note(self, kind: str, report: InstanceReport, total: int, now_s: float) -> None:
        """Take in one counter of the instance that sent the report."""
        source = CounterSource(report.instance_id, report.incarnation)
        window = self._windows.get(kind, self._empty)
        self._windows[kind] = observe_counter(window, source, total, now_s)

    def per_s(self, kind: str, now_s: float) -> float:
        """Mean over the window; 0.0 for a kind that nobody has counted."""
        return demand_per_s(self._windows.get(kind, self._empty), now_s)
