"""What a fleet has made of its faults: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from rorqual_cli.chaos.answers import Answer


@dataclass
class Asked:
    """One request as its client saw it. Times are of one monotonic clock.

    question: its number. request_ids: of each try, for logs and traces. pieces_s: when something of
    the answer came. answer: None = it never came whole; failure says why. num_resumes: how often
    its client went on elsewhere.
    """

    question: int
    started_s: float
    request_ids: list[str] = field(default_factory=list)
    pieces_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    answer: Answer | None = None
    failure: str = ""
    num_resumes: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """lost: requests without a whole answer. wrong: with another one than on a calm day.

    leaked: leases, pages, windows and requests still held at the end. Stalls: of the streams under
    way when a fault struck, the longest time each got nothing.
    """

    requests: int
    lost: int
    wrong: int
    leaked: int
    resumed: int
    worst_stall_s: float
    p50_stall_s: float

    @property
    def is_good(self) -> bool:
        """Nothing lost, wrong or leaked."""
        return not (self.lost or self.wrong or self.leaked)

    def to_json(self) -> dict[str, Any]:
        """For the one line of output."""
        return {
            "requests": self.requests,
            "lost": self.lost,
            "wrong": self.wrong,
            "leaked": self.leaked,
            "resumed": self.resumed,
            "worst_stall_s": round(self.worst_stall_s, 2),
            "p50_stall_s": round(self.p50_stall_s, 2),
        }


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which a fault shows: from when it struck until the next one, or the end."""

    from_s: float
    to_s: float


def judge(
    asked: Sequence[Asked],
    expected: Mapping[int, Answer],
    windows: Sequence[Window],
    *,
    num_leaked: int,
) -> Verdict:
    """All requests against the answers of a calm day."""
    stalls = [stall for window in windows for stall in stalls_in(asked, window)]
    answered = [each for each in asked if each.answer is not None]
    return Verdict(
        requests=len(asked),
        lost=len(asked) - len(answered),
        wrong=sum(each.answer != expected[each.question] for each in answered),
        leaked=num_leaked,
        resumed=sum(each.num_resumes > 0 for each in asked),
        worst_stall_s=max(stalls, default=0.0),
        p50_stall_s=median(stalls) if stalls else 0.0,
    )


def stalls_in(asked: Sequence[Asked], window: Window) -> list[float]:
    """Of each stream in mid-answer at the window's begin, the longest wait that ends in it or
    behind it: for its next piece, or for an end without one."""
    stalls = []
    for each in asked:
        if not each.pieces_s or each.pieces_s[0] > window.from_s or each.ended_s <= window.from_s:
            continue
        times = [*each.pieces_s, each.ended_s]
        waits = [b - a for a, b in pairwise(times) if b > window.from_s and a < window.to_s]
        stalls.append(max(waits, default=0.0))
    return stalls
