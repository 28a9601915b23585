"""One JSON line a figure, in the form every `make bench-*` prints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable


def emit(
    name: str,
    value: float,
    unit: str,
    *,
    goal: float | None = None,
    passes: Callable[[float, float], bool] | None = None,
    **extra: object,
) -> bool:
    """Print `{"name", "value", "unit", "goal", "pass", "load1"}`; `pass` is null without a goal.

    passes: how value relates to goal when the goal is met; default value >= goal.
    Returns: whether the goal is met (True without one).
    """
    met = None
    if goal is not None:
        met = (passes or (lambda v, g: v >= g))(value, goal)
    line = {"name": name, "value": round(value, 4), "unit": unit, "goal": goal, "pass": met}
    print(json.dumps({**line, "load1": round(os.getloadavg()[0], 2), **extra}), flush=True)
    return met is not False


def at_most(value: float, goal: float) -> bool:
    """`passes` for figures where less is better."""
    return value <= goal
