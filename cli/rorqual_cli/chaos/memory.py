"""Whether processes grow: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

AVERAGED_S = 30.0
MAX_GROWTH = 1.03
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident memory of one process. at_s: since the load began. num_shared_bytes: of files and
    shared memory, which others may have resident, too."""

    at_s: float
    name: str
    pid: int
    num_bytes: int
    num_shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Growth:
    """Means of one process's early and late samples."""

    early_bytes: float
    late_bytes: float
    early_shared_bytes: float
    late_shared_bytes: float

    @property
    def ratio(self) -> float:
        """Late over early."""
        return self.late_bytes / self.early_bytes

    @property
    def is_within(self) -> bool:
        """It has not grown by more than may be."""
        return self.ratio <= MAX_GROWTH

    def __str__(self) -> str:
        whole = f"{self.early_bytes / _MB:.1f} -> {self.late_bytes / _MB:.1f} MB"
        shared = f"{self.early_shared_bytes / _MB:.1f} -> {self.late_shared_bytes / _MB:.1f} MB"
        return f"{whole}, of which shared {shared}"


def growth_of(samples: Sequence[Sample], *, warm_s: float) -> dict[str, Growth]:
    """Memory at `warm_s` and at the end, by name, of each process that ran all that time: one that
    was killed in between is not compared with the one that took its place.

    Both are means over AVERAGED_S, or as much of it as there is.
    """
    if not samples:
        return {}
    by_process: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        by_process[sample.name, sample.pid].append(sample)
    end_s = max(sample.at_s for sample in samples)
    averaged_s = min(AVERAGED_S, max(0.0, end_s - warm_s) / 2)
    growth = {}
    for (name, _), own in by_process.items():
        early = [s for s in own if warm_s <= s.at_s <= warm_s + averaged_s]
        late = [s for s in own if s.at_s >= end_s - averaged_s]
        was_there = own[0].at_s <= warm_s and own[-1].at_s >= end_s
        if was_there and early and late:
            growth[name] = Growth(*_means(early, late))
    return growth


def _means(early: Sequence[Sample], late: Sequence[Sample]) -> tuple[float, float, float, float]:
    return (
        mean(sample.num_bytes for sample in early),
        mean(sample.num_bytes for sample in late),
        mean(sample.num_shared_bytes for sample in early),
        mean(sample.num_shared_bytes for sample in late),
    )


def unmeasured(samples: Sequence[Sample], growth: Mapping[str, Growth]) -> list[str]:
    """Services of which nothing can be said, sorted; without those of one instance that was started
    again meanwhile."""
    instances: dict[str, set[str]] = defaultdict(set)
    processes: dict[str, set[int]] = defaultdict(set)
    for sample in samples:
        instances[_service_of(sample.name)].add(sample.name)
        processes[_service_of(sample.name)].add(sample.pid)
    known = {_service_of(name) for name in growth}
    return sorted(
        service
        for service, names in instances.items()
        if service not in known and (len(names) > 1 or len(processes[service]) == 1)
    )


def _service_of(name: str) -> str:
    return name.rpartition("-")[0] or name
