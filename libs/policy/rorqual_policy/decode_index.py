"""Decode instances by estimated step: whom `choose_decode` has to look at among thousands."""

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from rorqual_policy.placement import (
    DecodeInstance,
    PlacementParams,
    PlacementRequest,
    estimate_step_s,
    has_room,
    num_pages_needed,
)

_STALE_RATIO = 4


class DecodeIndex:
    """Setting an instance takes O(log n), finding the candidates too, ties and full ones apart."""

    def __init__(self, params: PlacementParams) -> None:
        """params: only the step time model counts."""
        self.params = params
        self._instances: dict[str, DecodeInstance] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._instances)

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._instances

    @property
    def instances(self) -> list[DecodeInstance]:
        """All of them, in the order of their ids."""
        return [self._instances[instance_id] for instance_id in sorted(self._instances)]

    def set(self, instance: DecodeInstance) -> None:
        """The instance is as loaded as this from now on."""
        self._instances[instance.instance_id] = instance
        heappush(self._heap, (self._step_s(instance), instance.instance_id))
        if len(self._heap) > _STALE_RATIO * len(self._instances) + 64:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(self._step_s(i), i.instance_id) for i in self._instances.values()]
        heapify(self._heap)

    def weigh_by(self, params: PlacementParams) -> None:
        """Another step time model from now on; takes as long as looking at all instances."""
        self.params = params
        self._rebuild()

    def remove(self, instance_id: str) -> None:
        """It is gone, or takes nothing new."""
        self._instances.pop(instance_id, None)

    def candidates(
        self,
        request: PlacementRequest,
        params: PlacementParams,
        is_usable: Callable[[str], bool] = lambda _: True,
    ) -> Sequence[DecodeInstance]:
        """Usable instances of the shortest steps, as many as decide; all when none has room.

        `choose_decode` takes the same one of these as of all. params: with this index's step time
        model.
        """
        num_pages = num_pages_needed(request, params)
        own_s = params.per_request_s + params.per_kv_token_s * request.num_context_tokens
        reach_s = own_s * (0.5 * (params.num_deciders - 1) + 1e-9)
        found: list[DecodeInstance] = []
        limit_s: float | None = None
        seen: list[tuple[float, str]] = []
        for entry in self._ascending():
            seen.append(entry)
            step_s, instance_id = entry
            if limit_s is not None and step_s > limit_s:
                break
            instance = self._instances[instance_id]
            if not is_usable(instance_id):
                continue
            found.append(instance)
            if limit_s is None and has_room(instance, request, num_pages):
                limit_s = step_s + reach_s
        for entry in seen:
            heappush(self._heap, entry)
        return found

    def _ascending(self) -> Iterator[tuple[float, str]]:
        """Current entries, each once, taken off the heap."""
        before: tuple[float, str] | None = None
        while self._heap:
            entry = heappop(self._heap)
            if entry == before:
                continue
            before = entry
            instance = self._instances.get(entry[1])
            if instance is not None and self._step_s(instance) == entry[0]:
                yield entry

    def _step_s(self, instance: DecodeInstance) -> float:
        return estimate_step_s(instance.num_running, instance.kv_tokens, self.params)
