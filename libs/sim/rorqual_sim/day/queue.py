"""Prompts that wait for prefill, as cohorts: those of one class that came in one second."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from rorqual_policy.prefill_order import PrefillOrder, prefill_key_s

_EMPTY_KEY_S = float("inf")


class Served(NamedTuple):
    """Requests of one class that were computed together."""

    place: int
    """Number of the class."""
    num: float
    wait_s: float
    """From arrival to the begin of their prefill."""


class PromptQueue:
    """One queue for all ranks, in the policy's order, as `choose_pull_queue` takes from it."""

    def __init__(self, work_s: Sequence[float], order: PrefillOrder) -> None:
        self._work_s = work_s
        self._lead_s = [prefill_key_s(0.0, work, order) for work in work_s]
        self._cohorts: list[deque[list[float]]] = [deque() for _ in work_s]
        self.waiting_s = 0.0
        """Seconds of a rank."""

    def add(self, now_s: float, nums: Sequence[float]) -> None:
        """Those that arrive in the second from now_s on."""
        for place, num in enumerate(nums):
            if num > 0:
                self._cohorts[place].append([now_s, float(num)])
                self.waiting_s += num * self._work_s[place]

    def serve(self, now_s: float, rank_s: float) -> list[Served]:
        """What rank_s seconds of ranks compute in the second from now_s on."""
        served: list[Served] = []
        used_s = 0.0
        while used_s < rank_s and (place := self._next()) >= 0:
            cohort, work_s = self._cohorts[place][0], self._work_s[place]
            num = min(cohort[1], (rank_s - used_s) / work_s)
            used_s += num * work_s
            # within the second they come evenly, and are taken evenly
            wait_s = max(0.0, now_s - cohort[0] + used_s / rank_s - 0.5)
            served.append(Served(place, num, wait_s if cohort[0] < now_s else 0.0))
            cohort[1] -= num
            if cohort[1] <= 1e-9:
                self._cohorts[place].popleft()
        self.waiting_s = max(0.0, self.waiting_s - used_s)
        return served

    def _next(self) -> int:
        """The class whose first cohort is the most urgent; -1 when nothing waits."""
        best, best_key_s = -1, _EMPTY_KEY_S
        for place, cohorts in enumerate(self._cohorts):
            if cohorts and cohorts[0][0] + self._lead_s[place] < best_key_s:
                best, best_key_s = place, cohorts[0][0] + self._lead_s[place]
        return best
