"""How a stopping decode instance spends its time."""

from dataclasses import dataclass

MOVE_S = 20.0
"""For generations to find another instance and be copied there."""
LAST_S = 4.0
"""For the last tokens to be sent, and for readers to be told of what nobody took."""


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """Seconds, one after the other."""

    grace_s: float
    """Running generations may end where they are."""
    move_s: float
    """Those that have not are moved."""


def plan_drain(total_s: float, grace_s: float) -> DrainPlan:
    """What there is beyond moving is grace, up to grace_s; of a short time half is for moving."""
    left_s = max(0.0, total_s - min(LAST_S, total_s / 2))
    move_s = min(MOVE_S, left_s / 2)
    return DrainPlan(min(grace_s, left_s - move_s), move_s)
