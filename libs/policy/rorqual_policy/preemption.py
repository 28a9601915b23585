"""Which generations step aside when a decode instance is short of KV pages, and when they go on."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageUser:
    """One running generation. Order of a list of them: the oldest first."""

    num_held: int
    num_wanted: int
    """Pages without which it can't take its next step; 0 = it has room."""


def choose_to_pause(users: Sequence[PageUser], num_free: int) -> list[int]:
    """Places of the youngest, so many that the others find the pages they want; never the oldest.

    What was begun first ends first, so something always ends and everything gets its turn.
    """
    num_short = sum(user.num_wanted for user in users) - num_free
    chosen: list[int] = []
    for place in range(len(users) - 1, 0, -1):
        if num_short <= 0:
            break
        chosen.append(place)
        num_short -= users[place].num_held + users[place].num_wanted
    return chosen


def can_resume(num_held: int, num_ahead: int, num_free: int) -> bool:
    """Whether a paused generation finds its pages and some to grow into. Nobody waits for any then.

    num_held: that it had. num_ahead: that it would take next.
    """
    return num_free >= num_held + num_ahead
