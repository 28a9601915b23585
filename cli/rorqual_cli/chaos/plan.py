"""Which faults there are, and which of them strike when: pure, from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

INSTANCES = {
    **dict.fromkeys(("gateway", "router", "recipe", "kvmeta", "grammar", "vision"), 2),
    **dict.fromkeys(("prefill", "decode"), 2),
}
"""What a fleet needs so that one instance of each can be missed."""


class Kind(StrEnum):
    """What happens to the target."""

    KILL = "kill -9"
    DRAIN = "told to stop (SIGTERM), and started again"
    STOP = "stopped (SIGSTOP)"
    HALF_OPEN = "half-open connection to NATS"
    HALF_OPEN_REDIS = "half-open connection to Redis"
    EMPTY = "killed, comes back empty"
    FULL_DISK = "full disk"
    CLOCK = "clock jumps"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. target: an instance, or `all`. lasts_s: until it is mended; 0 = what is killed is
    started again by the fleet itself. by_s: of a clock, how far it jumps.
    """

    kind: Kind
    target: str
    lasts_s: float = 0.0
    by_s: float = 0.0

    @property
    def name(self) -> str:
        """As a person reads it."""
        jump = f" by {self.by_s:+g} s" if self.by_s else ""
        time = f", {self.lasts_s:g} s" if self.lasts_s else ""
        return f"{self.target}: {self.kind}{jump}{time}"


STOP_S = 5.0
HALF_OPEN_S = 5.0
FULL_DISK_S = 5.0
CLOCK_S = 5.0
CLOCK_JUMP_S = 90.0
RELAYED = (
    *("gateway-2", "recipe-2", "router-2", "prefill-2", "decode-2"),
    *("kvmeta-2", "grammar-2", "vision-2", "scaler-1"),
)
"""Instances that reach NATS through a relay of ours."""
RELAYED_REDIS = ("gateway-2", "kvmeta-2")
"""Those that reach Redis through another one."""

_KILLED = (
    *("decode-1", "prefill-1", "router-1", "recipe-1", "gateway-1"),
    *("kvmeta-1", "grammar-1", "vision-1", "scaler-1", "nats", "redis"),
)
_STOPPED = (
    *("decode-1", "prefill-1", "router-1", "recipe-1", "gateway-1"),
    *("kvmeta-1", "grammar-1", "vision-1", "nats", "redis"),
)
TABLE: tuple[Fault, ...] = (
    *(Fault(Kind.KILL, target) for target in _KILLED),
    Fault(Kind.EMPTY, "redis"),
    *(Fault(Kind.STOP, target, STOP_S) for target in _STOPPED),
    *(Fault(Kind.HALF_OPEN, target, HALF_OPEN_S) for target in RELAYED),
    *(Fault(Kind.HALF_OPEN_REDIS, target, HALF_OPEN_S) for target in RELAYED_REDIS),
    Fault(Kind.FULL_DISK, "all", FULL_DISK_S),
    Fault(Kind.CLOCK, "all", CLOCK_S, CLOCK_JUMP_S),
    Fault(Kind.CLOCK, "all", CLOCK_S, -CLOCK_JUMP_S),
)
"""Every fault that a fleet has to outlast."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault and when it comes, in seconds from the beginning of the load."""

    at_s: float
    fault: Fault


def plan_strikes(
    seed: int, seconds: float, faults: Sequence[Fault], *, every_s: float
) -> list[Strike]:
    """A random fault every `every_s`, none before the first one's turn and none in the last.

    No instance is hit twice in a row where there is another one.
    Raises: ValueError without faults, or with an interval that is none.
    """
    if not faults or every_s <= 0:
        raise ValueError(f"need faults and an interval above 0, got {len(faults)} and {every_s}")
    rng = random.Random(seed)
    strikes: list[Strike] = []
    for turn in range(1, int(seconds / every_s)):
        last = strikes[-1].fault.target if strikes else ""
        others = [fault for fault in faults if fault.target != last] or list(faults)
        strikes.append(Strike(turn * every_s, rng.choice(others)))
    return strikes


def choose_faults(words: Iterable[str]) -> list[Fault]:
    """Those of the table whose names contain one of the words, in the words' order; all without
    words.

    Raises: ValueError naming a word that fits none.
    """
    wanted = list(words)
    for word in wanted:
        if not any(word in fault.name for fault in TABLE):
            raise ValueError(f"no fault is called {word!r}; there are: {_names()}")
    if not wanted:
        return list(TABLE)
    return list(dict.fromkeys(f for word in wanted for f in TABLE if word in f.name))


def _names() -> str:
    return "; ".join(fault.name for fault in TABLE)
