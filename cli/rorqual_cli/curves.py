"""The two curves of a serving engine, as JSON and as a picture.

Prefill: tokens a second and card, and milliseconds a step, by the tokens that a rank computes in
one step. Decode: tokens a second and card against tokens a second and user, by how many run
together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = Literal["prefill", "decode"]


@dataclass(frozen=True)
class PrefillPoint:
    """One size of a prefill step."""

    tokens_per_rank: float
    step_ms: float
    tokens_per_s_per_card: float


@dataclass(frozen=True)
class DecodePoint:
    """One number of generations that run together, a token each a step."""

    num_running: int
    step_ms: float
    tokens_per_s_per_user: float
    tokens_per_s_per_card: float


@dataclass(frozen=True)
class Curve:
    """A curve and where it was measured."""

    kind: Kind
    model: str
    model_fingerprint: str
    device: str
    processor: str
    num_threads: int
    num_ranks: int
    """Cards that compute one step together."""
    context_tokens: int
    """Tokens in front of each step's, of each sequence."""
    measured_unix_s: float
    points: tuple[PrefillPoint | DecodePoint, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def prefill_points(steps: Iterable[tuple[int, float]], num_ranks: int) -> tuple[PrefillPoint, ...]:
    """steps: (tokens, seconds) of a step."""
    return tuple(
        PrefillPoint(tokens / num_ranks, took_s * 1e3, tokens / took_s / num_ranks)
        for tokens, took_s in steps
    )


def decode_points(steps: Iterable[tuple[int, float]], num_ranks: int) -> tuple[DecodePoint, ...]:
    """steps: (generations, seconds) of a step."""
    return tuple(
        DecodePoint(running, took_s * 1e3, 1 / took_s, running / took_s / num_ranks)
        for running, took_s in steps
    )


def draw(curve: Curve, path: Path) -> None:
    """A picture of the curve as PNG. Raises: ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes: Axes = figure.subplots()
    axes.set_title(f"{curve.kind} of {curve.model} on {curve.processor}, {curve.device}")
    axes.grid(visible=True, alpha=0.3)
    _DRAWERS[curve.kind](axes, curve.points)
    figure.savefig(path, dpi=120)


def _draw_prefill(axes: Axes, points: tuple[Any, ...]) -> None:
    tokens = [point.tokens_per_rank for point in points]
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens per rank and step")
    axes.set_ylabel("tokens/s per card", color="tab:blue")
    axes.plot(tokens, [p.tokens_per_s_per_card for p in points], "o-", color="tab:blue")
    axes.set_ylim(bottom=0)
    steps = axes.twinx()
    steps.set_ylabel("ms per step", color="tab:red")
    steps.plot(tokens, [point.step_ms for point in points], "s--", color="tab:red")
    steps.set_ylim(bottom=0)


def _draw_decode(axes: Axes, points: tuple[Any, ...]) -> None:
    users = [point.tokens_per_s_per_user for point in points]
    cards = [point.tokens_per_s_per_card for point in points]
    axes.set_xlabel("tokens/s per user")
    axes.set_ylabel("tokens/s per card")
    axes.plot(users, cards, "o-", color="tab:blue")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    for point, x, y in zip(points, users, cards, strict=True):
        axes.annotate(str(point.num_running), (x, y), textcoords="offset points", xytext=(5, 5))


_DRAWERS: dict[Kind, Callable[[Axes, tuple[Any, ...]], None]] = {
    "prefill": _draw_prefill,
    "decode": _draw_decode,
}
