"""In which order waiting prompts are taken, and which rank takes them.

Plain arithmetic over named tuples and indexable numbers, so that the simulator compiles these very
functions.
"""

from math import inf
from typing import NamedTuple, Protocol


class Numbers(Protocol):
    """Numbers by index: a list, a tuple, an array."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> float: ...


class PrefillOrder(NamedTuple):
    """Order of waiting prompts: arrival_s + min(beta * work_s, max_wait_s), smallest first."""

    beta: float
    """Seconds of queueing that one second of own work is worth; 0 = first come, first served."""
    max_wait_s: float
    """No prompt is overtaken by one that arrived later than this after it."""


FIRST_COME = PrefillOrder(beta=0.0, max_wait_s=0.0)
SHORT_FIRST = PrefillOrder(beta=20.0, max_wait_s=50.0)
"""Source: bench-policy, bar 4, both halves of a trace of conversations, two seeds each. In bursts
of 1.5x at 0.85 load 0.7 to 0.8 % of requests are late, and prompts of 64K to 256K wait 3.6 to 3.8
times as long as first come, first served; beta = 16 bounded at 30 s: 0.8 to 1.0 %, 3.1 to 3.3.
"""


def prefill_key_s(arrival_s: float, work_s: float, order: PrefillOrder) -> float:
    """Place of a prompt in the order: smaller goes first. Equal keys: the earlier submitted."""
    return arrival_s + min(order.beta * work_s, order.max_wait_s)


NO_QUEUE = -1


def choose_pull_queue(head_keys: Numbers, own: int, is_strict: bool, lead_s: float) -> int:
    """Queue that a group with spare compute takes its next prompt from; NO_QUEUE when none.

    head_keys: for each queue the key of its first prompt, infinity when it is empty.
    own: the queue this group was assigned to. It is the only one while is_strict; else it comes
    first unless the most urgent of the others is ahead of it by more than lead_s.
    """
    if is_strict:
        return own if head_keys[own] < inf else NO_QUEUE
    best = NO_QUEUE
    best_key = inf
    for queue in range(len(head_keys)):
        if head_keys[queue] < best_key:
            best = queue
            best_key = head_keys[queue]
    if head_keys[own] < inf and head_keys[own] - lead_s <= best_key:
        return own
    return best


def choose_least(loads: Numbers) -> int:
    """Index of the smallest load; the first of equal ones. loads must not be empty."""
    best = 0
    for index in range(1, len(loads)):
        if loads[index] < loads[best]:
            best = index
    return best


def has_spare_compute(pending_s: float, budget_s: float, a0_s: float) -> bool:
    """Whether a rank with pending_s seconds of pulled work could do more in a step of budget_s.

    Pulled work waits where only one rank can do it: a rank takes no more than fills its next step.
    One without any takes some also where a0 alone is longer than the budget.
    """
    return pending_s <= 0.0 or pending_s < budget_s - a0_s


AHEAD_S = 1.0
"""Of shared parts so much is given away ahead, or half of what the long prompt takes if that is
more: on a slow engine a second is no more than one short prompt.

Source: tests/unit/policy/line_fleet.py, three instances, one three times as slow, behind prompts of
2K to 6K tokens: P99 of short ones 1.4 times that alone; with no more than the next step 6.4 to 7.4
times, with half a second 3.5 to 5.2. Half as fast: 1.3 to 1.6 times; with a second at most 3.4 to
4.3. The bars of make bench-policy are the same with either."""


def fits_beside(
    others_s: float,
    longest_s: float,
    work_s: float,
    room_s: float,
    shared_part: float,
    after_s: float,
) -> bool:
    """Whether a rank without spare compute had better do work_s beside its longest prompt.

    It has to fit, and to be worth it: see the two functions below.
    """
    fits = work_s <= beside_room_s(others_s, longest_s, room_s, shared_part)
    return fits and gains_beside(others_s, work_s, after_s)


def beside_room_s(others_s: float, longest_s: float, room_s: float, shared_part: float) -> float:
    """Most work that the shared part of a rank's steps finishes with the next step or, where its
    longest prompt takes longer, well before that is done.

    others_s: what the rank has beside the longest. room_s: of a step, less a0.
    """
    ahead_s = max(room_s, min(longest_s, max(AHEAD_S, 0.5 * longest_s)))
    return shared_part * ahead_s - others_s


def gains_beside(others_s: float, work_s: float, after_s: float) -> bool:
    """Whether work_s is done sooner beside a rank's longest prompt than by waiting, by more than
    the long prompt loses.

    after_s: from the rank's next step until whoever is free first would be done with work_s.
    """
    return others_s + 2.0 * work_s <= after_s
