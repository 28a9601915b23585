"""Instances of one service over a day: started, ready, failed and started again, drained."""

from __future__ import annotations

from collections import deque


class Instances:
    """A number that something keeps: who fails is started again, whatever the autoscaler."""

    def __init__(self, num: int, *, cards: int, start_up_s: float, drain_s: float) -> None:
        self.cards = cards
        self._start_up_s, self._drain_s = start_up_s, drain_s
        self.num_ready = num
        self._ready_s: deque[float] = deque()
        """When each starting one will be at work, the soonest first."""
        self.card_s = 0.0
        self.num_reversals = 0
        self.num_changes = 0
        self._direction = 0

    @property
    def num_kept(self) -> int:
        return self.num_ready + len(self._ready_s)

    @property
    def ready_at_s(self) -> tuple[float, ...]:
        """Of the starting ones."""
        return tuple(self._ready_s)

    def advance(self, now_s: float, dt_s: float) -> None:
        """Whoever has started by now is at work; all cost their cards meanwhile."""
        while self._ready_s and self._ready_s[0] <= now_s:
            self._ready_s.popleft()
            self.num_ready += 1
        self.card_s += self.num_kept * self.cards * dt_s

    def keep(self, num: int, now_s: float) -> None:
        """As many from now on: more have to start, fewer drain, those that start first."""
        change = num - self.num_kept
        if change == 0:
            return
        direction = 1 if change > 0 else -1
        self.num_reversals += direction == -self._direction
        self._direction = direction
        self.num_changes += 1
        for _ in range(change):
            self._ready_s.append(now_s + self._start_up_s)
        for _ in range(-change):
            if self._ready_s:
                self._ready_s.pop()
            else:
                self.num_ready -= 1
                self.card_s += self.cards * self._drain_s

    def fail(self, num: int, now_s: float) -> int:
        """So many of those at work are gone and start again; how many really were there."""
        lost = min(num, self.num_ready)
        self.num_ready -= lost
        self._ready_s.extend([now_s + self._start_up_s] * lost)
        return lost
