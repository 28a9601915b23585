"""The shared prefix store and the kept windows, by nodes of the tree of prefixes."""

from __future__ import annotations

from rorqual_sim.replay.options import ReplayOptions
from rorqual_sim.replay.requests import Request


class PrefixStore:
    """Pages live for their lifetime since they were last written or matched."""

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._pages: dict[int, float] = {}
        self._windows: dict[int, float] = {}
        self.num_replays = 0

    def match(self, request: Request, now_s: float) -> tuple[int, int]:
        """(tokens whose KV is read, tokens that have to run again for want of a window)."""
        oldest_s = now_s - self._options.store_lifetime_s
        num_pages = 0
        for page in request.pages:
            if self._pages.get(page, -float("inf")) < oldest_s:
                break
            self._pages[page] = now_s
            num_pages += 1
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
