"""Decode instances by estimated step: whom `choose_decode` has to look at among thousands."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from zlib import crc32

from rorqual_policy.load_view import InstanceReport
from rorqual_policy.placement import (
    DecodeInstance,
    PlacementParams,
    PlacementRequest,
    estimate_step_s,
    has_room,
    num_pages_needed,
)

_STALE_RATIO = 4
_MOST_LOOKED_AT = 32
"""Of equal instances so many are told apart; with more routers, two for each."""

_Placed = tuple[int, int]
"""Tokens and pages of a placement that no report has counted yet."""


@dataclass(eq=False, slots=True)
class _Known:
    load: DecodeInstance
    order: int
    """Among equal ones, another on every router."""
    report: InstanceReport
    heard_s: float
    in_flight: dict[str, _Placed] = field(default_factory=dict)
    """By request, oldest first."""
    entry: _Entry | None = None
    """The current one; None while it has no free slot."""


_Entry = tuple[float, int, _Known]
"""Step time, order, and whose; those that are not current are dropped when they come up."""


class DecodeLoads:
    """Live decode instances: their newest reports, and what was placed there since.

    A report, a placement and finding whom to choose among take O(log n).
    """

    def __init__(
        self,
        params: PlacementParams,
        *,
        silent_s: float = 2.0,
        settle_s: float = 1.0,
        salt: str = "",
    ) -> None:
        """params: only the step time model counts. silent_s: see `LoadView`.

        settle_s: handover takes no longer than this: afterwards the reports are right by
        themselves. salt: another on every router.

        Raises: ValueError when a time is negative.
        """
        if silent_s <= 0 or settle_s < 0:
            raise ValueError(f"need silent_s > 0, settle_s >= 0; got {silent_s}, {settle_s}")
        self._params = params
        self._silent_s = silent_s
        self._settle_s = settle_s
        self._salt = crc32(salt.encode())
        self._known: dict[str, _Known] = {}
        self._heap: list[_Entry] = []
        self._num_heard = 0
        self._settling: deque[tuple[float, _Known, str, _Placed]] = deque()
        """Until when which placement counts, soonest first."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def instances(self) -> list[DecodeInstance]:
        """The load of each, in the order of their ids."""
        return [self._known[instance_id].load for instance_id in sorted(self._known)]

    def weigh_by(self, params: PlacementParams) -> None:
        """Another step time model from now on; takes as long as looking at all instances."""
        self._params = params
        for known in self._known.values():
            self._weigh(known)

    # What is heard

    def hear(self, report: InstanceReport, now_s: float) -> None:
        """Take in a report newer than the one before; arrivals that it shows are in flight no
        more. A draining instance takes nothing new."""
        known = self._known.get(report.instance_id)
        if report.draining:
            self.remove(report.instance_id)
            return
        if known is None or report.incarnation != known.report.incarnation:
            self.remove(report.instance_id)
            self._num_heard += 1
            order = crc32(report.instance_id.encode(), self._salt) << 32 | self._num_heard
            known = _Known(_reported_load(report), order, report, now_s)
            self._known[report.instance_id] = known
        else:
            _go_on(known, report)
            known.report, known.heard_s = report, now_s
        self._weigh(known)

    def remove(self, instance_id: str) -> None:
        """It is gone, or takes nothing new."""
        known = self._known.pop(instance_id, None)
        if known is not None:
            known.entry = None
            known.in_flight.clear()

    # What is decided

    def candidates(
        self, request: PlacementRequest, params: PlacementParams, now_s: float
    ) -> Sequence[DecodeInstance]:
        """Live instances of the shortest steps, as many as decide; all when none of these has room.

        `choose_decode` takes one of these that it might take of all. They stay valid until the next
        change here. params: with this object's step time model.
        """
        if self._settling and self._settling[0][0] < now_s:
            self._settle(now_s)
        if request.excluded_ids:
            self._take_back(request)
        num_pages = num_pages_needed(request, params)
        own_s = params.per_request_s + params.per_kv_token_s * request.num_context_tokens
        reach_s = own_s * (0.5 * (params.num_deciders - 1) + 1e-9)
        heap = self._heap
        if len(heap) > 2:
            first = heap[0]
            known, limit_s = first[2], first[0] + reach_s
            is_alone = heap[1][0] > limit_s and heap[2][0] > limit_s
            is_alive = known.entry is first and known.heard_s >= now_s - self._silent_s
            if is_alone and is_alive and has_room(known.load, request, num_pages):
                return (known.load,)
        return self._look_further(request, params, num_pages, reach_s, now_s - self._silent_s)

    def note(
        self, instance_id: str, request: PlacementRequest, num_pages: int, now_s: float
    ) -> None:
        """Count a request on its instance at once, until a report shows it or it has settled."""
        known = self._known[instance_id]
        if request.request_id in known.in_flight:
            self._uncount(known, request.request_id)
        placed = (request.num_context_tokens, num_pages)
        known.in_flight[request.request_id] = placed
        self._settling.append((now_s + self._settle_s, known, request.request_id, placed))
        _add(known.load, placed)
        self._weigh(known)

    def _look_further(
        self,
        request: PlacementRequest,
        params: PlacementParams,
        num_pages: int,
        reach_s: float,
        oldest_s: float,
    ) -> Sequence[DecodeInstance]:
        most = max(_MOST_LOOKED_AT, 2 * params.num_deciders)
        found: list[DecodeInstance] = []
        limit_s: float | None = None
        seen: list[_Entry] = []
        while self._heap and len(seen) < most:
            entry = heappop(self._heap)
            step_s, _, known = entry
            if known.entry is not entry:
                continue
            seen.append(entry)
            if limit_s is not None and step_s > limit_s:
                break
            if known.heard_s < oldest_s:
                continue
            found.append(known.load)
            if limit_s is None and has_room(known.load, request, num_pages):
                limit_s = step_s + reach_s
        for entry in seen:
            heappush(self._heap, entry)
        if limit_s is not None:
            return found
        return [known.load for known in self._known.values() if known.heard_s >= oldest_s]

    # What counts

    def _settle(self, now_s: float) -> None:
        while self._settling and self._settling[0][0] < now_s:
            _, known, request_id, placed = self._settling.popleft()
            if known.in_flight.get(request_id) is placed:
                self._uncount(known, request_id)

    def _take_back(self, request: PlacementRequest) -> None:
        """Whoever just refused it does not have it."""
        for instance_id in request.excluded_ids:
            known = self._known.get(instance_id)
            if known is not None and request.request_id in known.in_flight:
                self._uncount(known, request.request_id)

    def _uncount(self, known: _Known, request_id: str) -> None:
        _subtract(known.load, known.in_flight.pop(request_id))
        self._weigh(known)

    def _weigh(self, known: _Known) -> None:
        """The heap knows the instance by its present load."""
        load = known.load
        before, heap = known.entry, self._heap
        if load.num_running >= load.max_running:
            known.entry = None
            return
        step_s = estimate_step_s(load.num_running, load.kv_tokens, self._params)
        known.entry = entry = (step_s, known.order, known)
        if before is not None and heap[0] is before:
            heapreplace(heap, entry)
            return
        heappush(heap, entry)
        if len(heap) > _STALE_RATIO * len(self._known) + 64:
            heap[:] = [k.entry for k in self._known.values() if k.entry is not None]
            heapify(heap)


def _reported_load(report: InstanceReport) -> DecodeInstance:
    return DecodeInstance(
        instance_id=report.instance_id,
        num_running=report.num_running,
        max_running=report.max_running,
        kv_tokens=report.kv_tokens,
        num_free_pages=report.num_total_pages - report.num_used_pages,
        num_total_pages=report.num_total_pages,
    )


def _go_on(known: _Known, report: InstanceReport) -> None:
    """The load as that report has it, and what is still in flight behind it."""
    before, load = known.report, known.load
    for _ in range(min(report.num_running - before.num_running, len(known.in_flight))):
        _subtract(load, known.in_flight.pop(next(iter(known.in_flight))))
    load.max_running, load.num_total_pages = report.max_running, report.num_total_pages
    load.num_running += report.num_running - before.num_running
    load.kv_tokens += report.kv_tokens - before.kv_tokens
    num_free = report.num_total_pages - report.num_used_pages
    load.num_free_pages += num_free - (before.num_total_pages - before.num_used_pages)


def _add(load: DecodeInstance, placed: _Placed) -> None:
    load.num_running += 1
    load.kv_tokens += placed[0]
    load.num_free_pages -= placed[1]


def _subtract(load: DecodeInstance, placed: _Placed) -> None:
    load.num_running -= 1
    load.kv_tokens -= placed[0]
    load.num_free_pages += placed[1]
