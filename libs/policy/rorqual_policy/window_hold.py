"""How long a window state is kept for the next request that may go on behind it."""

from typing import NamedTuple


class WindowHold(NamedTuple):
    """Seconds to keep a window since it was made or last read."""

    tail_pages: int
    """Pages at a prompt's end whose windows are kept for tail_s: a conversation goes on there."""
    tail_s: float
    other_s: float
    """For windows further back: where another conversation may branch off."""


def window_hold_s(pages_behind: int, hold: WindowHold) -> float:
    """Seconds to keep the window behind a page that pages_behind more pages of its prompt follow.

    A window that was read is at the end of what was matched: it counts as pages_behind = 0.
    """
    return hold.tail_s if pages_behind < hold.tail_pages else hold.other_s
