"""Registered bars. A new one: a function with `@bar(number)` in a module that `MODULES` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.policy_bars.load import Load

MODULES = ("prefill", "buckets", "storage", "decode", "speed", "experts")


@dataclass(frozen=True)
class Figure:
    """One measured value and what it should be."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    is_upper: bool = False
    """The goal is the most, not the least, that the value may be."""
    note: str = ""


BarFunction = Callable[[Load | None], Iterator[Figure]]


@dataclass(frozen=True)
class Bar:
    """One bar: figures for a trace's load, or without one."""

    number: int
    needs_trace: bool
    measure: BarFunction
    minutes: float
    """About how long it takes: the long ones begin first."""


BARS: list[Bar] = []


def bar(
    number: int, *, needs_trace: bool = True, minutes: float = 0.3
) -> Callable[[BarFunction], BarFunction]:
    """Register the function as one bar, or a part of it."""

    def register(measure: BarFunction) -> BarFunction:
        BARS.append(Bar(number, needs_trace, measure, minutes))
        return measure

    return register


def least(name: str, value: float, unit: str, goal: float, note: str = "") -> Figure:
    """A figure that should be at least the goal."""
    return Figure(name, value, unit, goal, note=note)


def most(name: str, value: float, unit: str, goal: float, note: str = "") -> Figure:
    """A figure that should be at most the goal."""
    return Figure(name, value, unit, goal, is_upper=True, note=note)
