"""How many jobs of each tenant wait for prefill, as far as this router can know."""

from collections import deque
from collections.abc import Mapping

from rorqual_runtime.clock import Clock

REPORTED_TENANTS = 64
"""A router's report names the tenants with most jobs in its line, at most so many."""
_FRESH_S = 0.5
"""What was submitted here counts until the reports are sure to have it."""
_TTL_S = 2.0


class TenantCounts:
    """The lines of all routers, by their last reports, and what was submitted here since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported: dict[str, tuple[float, Mapping[str, int]]] = {}
        self._submitted: deque[tuple[float, str, int]] = deque()

    def hear(self, router_id: str, waiting: Mapping[str, int]) -> None:
        """What one router has in line."""
        self._reported[router_id] = self._clock.monotonic_s(), waiting

    def note(self, tenant: str, num_jobs: int) -> None:
        """Jobs that this router puts on the queue now."""
        self._submitted.append((self._clock.monotonic_s(), tenant, num_jobs))

    def waiting(self, tenant: str) -> int:
        """Jobs of the tenant that wait; a little too many rather than too few."""
        now_s = self._clock.monotonic_s()
        while self._submitted and now_s - self._submitted[0][0] > _FRESH_S:
            self._submitted.popleft()
        self._reported = {r: k for r, k in self._reported.items() if now_s - k[0] <= _TTL_S}
        reported = sum(counts.get(tenant, 0) for _, counts in self._reported.values())
        return reported + sum(num for _, who, num in self._submitted if who == tenant)


def largest(counts: Mapping[str, int]) -> dict[str, int]:
    """The tenants with most jobs, as many as a report names."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:REPORTED_TENANTS])
