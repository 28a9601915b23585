"""Who still holds something for a request."""

from __future__ import annotations

from collections.abc import Iterable

from rorqual_proto.v1 import load_pb2
from rorqual_runtime.discovery import Instance


def held(load: load_pb2.LoadReport) -> int:
    """Requests, leases, pages and windows, all together."""
    counts = (load.num_active_requests, load.num_held_leases)
    return sum((*counts, load.num_used_pages, load.num_used_windows))


def holders(instances: Iterable[Instance]) -> dict[str, int]:
    """By instance id; who holds nothing is left out."""
    found = {i.id: held(i.load) for i in instances if i.load is not None}
    return {instance_id: count for instance_id, count in found.items() if count}
