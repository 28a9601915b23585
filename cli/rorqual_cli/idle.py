"""Who still holds something for a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rorqual_proto.v1 import load_pb2
from rorqual_runtime.discovery import Instance

Held = Mapping[str, int]
"""How many of what: requests, jobs, leases, pages, windows; what there is none of is left out."""


def held(load: load_pb2.LoadReport) -> Held:
    """What an instance says it holds."""
    counts = {
        "requests": load.num_active_requests,
        "jobs": load.router.queued_jobs,
        "leases": load.num_held_leases,
        "pages": load.num_used_pages,
        "windows": load.num_used_windows,
    }
    return {kind: count for kind, count in counts.items() if count}


def holders(instances: Iterable[Instance]) -> dict[str, Held]:
    """By instance id; who holds nothing is left out."""
    found = {i.id: held(i.load) for i in instances if i.load is not None}
    return {instance_id: counts for instance_id, counts in found.items() if counts}


def num_held(by_instance: Mapping[str, Held]) -> int:
    """All of it together."""
    return sum(sum(counts.values()) for counts in by_instance.values())


def describe(counts: Held) -> str:
    """`3 pages, 1 leases`."""
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())
