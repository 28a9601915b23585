"""Which kept window states leave when their memory is full."""

from collections.abc import Sequence
from typing import Protocol

IDLE_UNIT_S = 10.0
"""Of two idle times, windows differ by how many of these are in them."""


class HeldWindow(Protocol):
    """What decides the value of one window state."""

    @property
    def num_bytes(self) -> int: ...

    @property
    def saved_tokens(self) -> int:
        """Tokens that run again where it is missing."""
        ...

    @property
    def used_s(self) -> float:
        """When it was made or last read."""
        ...

    @property
    def num_uses(self) -> int: ...


def window_value(window: HeldWindow, now_s: float) -> float:
    """Tokens it is expected to save, a byte.

    One that nobody has read is the end of a conversation, which may go on. The first to read it is
    that conversation, which leaves a newer one behind: from then on it is worth half. Read more
    often it stands behind what many prompts share.
    """
    likelihood = window.num_uses if window.num_uses > 1 else 1.0 / (1 + window.num_uses)
    recency = 1.0 + max(0.0, now_s - window.used_s) / IDLE_UNIT_S
    return likelihood * max(1, window.saved_tokens) / (recency * max(1, window.num_bytes))


def choose_window_victims(windows: Sequence[HeldWindow], now_s: float, num_bytes: int) -> list[int]:
    """Indices of the least valuable ones that together have num_bytes, or of all. Of equal ones
    the first named goes first."""
    victims: list[int] = []
    left = num_bytes
    for index in sorted(range(len(windows)), key=lambda i: window_value(windows[i], now_s)):
        if left <= 0:
            break
        victims.append(index)
        left -= windows[index].num_bytes
    return victims
