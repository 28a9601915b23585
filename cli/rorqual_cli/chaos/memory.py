"""Whether processes grow: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

AVERAGED_S = 30.0
MAX_GROWTH = 1.03


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident memory of one process. at_s: since the load began."""

    at_s: float
    name: str
    pid: int
    num_bytes: int


def growth_of(samples: Sequence[Sample], *, warm_s: float) -> dict[str, float]:
    """Memory at the end over that at `warm_s`, by name, of each process that ran all that time.

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
        early = [s.num_bytes for s in own if warm_s <= s.at_s <= warm_s + averaged_s]
        late = [s.num_bytes for s in own if s.at_s >= end_s - averaged_s]
        was_there = own[0].at_s <= warm_s and own[-1].at_s >= end_s
        if was_there and early and late:
            growth[name] = mean(late) / mean(early)
    return growth


def unmeasured(samples: Sequence[Sample], growth: Mapping[str, float]) -> list[str]:
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
