"""The shared prefix store and the kept windows, by nodes of the tree of prefixes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from rorqual_sim.replay.options import ReplayOptions
from rorqual_sim.replay.requests import Request


class PrefixStore:
    """Pages live for their lifetime since they were last written or matched."""

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._pages: dict[int, float] = {}
        self._windows: dict[int, float] = {}
        self.num_replays = 0

    def num_matched(self, request: Request, now_s: float) -> int:
        """Leading pages of the prompt that are here; nothing is touched."""
        oldest_s = now_s - self._options.store_lifetime_s
        for number, page in enumerate(request.pages):
            if self._pages.get(page, -float("inf")) < oldest_s:
                return number
        return len(request.pages)

    def match(self, request: Request, now_s: float) -> tuple[int, int]:
        """(tokens whose KV is read, tokens that have to run again for want of a window)."""
        num_pages = self.num_matched(request, now_s)
        for page in request.pages[:num_pages]:
            self._pages[page] = now_s
        hit = min(num_pages * request.page_tokens, request.input_tokens - 1)
        warm = min(request.warm_tokens, request.input_tokens - 1)
        if warm >= hit:
            return max(0, warm), 0
        kept_s = self._windows.get(request.pages[num_pages - 1], -float("inf"))
        self._windows[request.pages[num_pages - 1]] = now_s
        if now_s - kept_s <= self._options.window_hold_s:
            return hit, 0
        self.num_replays += 1
        return hit, min(hit, self._options.replay_tokens)

    def write(self, request: Request, now_s: float) -> None:
        """The prompt was computed: its pages are stored, the windows of the new ones kept."""
        for page in request.pages:
            if now_s - self._pages.get(page, -float("inf")) > self._options.store_lifetime_s:
                self._windows[page] = now_s
            self._pages[page] = now_s


class RankStores:
    """Where a request's prefix may be: in the store that all share, or only where it computes."""

    def __init__(self, options: ReplayOptions, rank_cache_s: float) -> None:
        own = replace(options, store_lifetime_s=rank_cache_s, window_hold_s=float("inf"))
        self._shared = PrefixStore(options)
        self._of_rank = defaultdict[tuple[int, int], PrefixStore](lambda: PrefixStore(own))
        self.are_local = rank_cache_s > 0

    def of(self, holder: tuple[int, int] | None) -> PrefixStore:
        """What a request on this rank can use."""
        if holder is None or not self.are_local:
            return self._shared
        return self._of_rank[holder]

    def forget(self, group: int) -> None:
        """A group is gone with what its ranks kept."""
        for holder in [holder for holder in self._of_rank if holder[0] == group]:
            del self._of_rank[holder]

    @property
    def num_replays(self) -> int:
        """Matches whose window was gone."""
        return self._shared.num_replays
