"""What is trained, in which order: stages as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_ALL: Mapping[str, float] = {
    "recall": 3.0,
    "instructions": 1.0,
    "copy": 1.5,
    "count": 1.0,
    "sort": 1.0,
    "arithmetic": 1.5,
    "tools": 2.0,
    "json": 1.5,
    "shapes": 1.5,
}
_LONG: Mapping[str, float] = {**_ALL, "recall": 9.0}


@dataclass(frozen=True)
class Stage:
    """One stretch of training. Rates go from their first to their last value in a straight line."""

    name: str
    tokens: int
    """Tokens of exercises, padding not counted"""
    max_tokens: int
    """Longest exercise"""
    step_tokens: int
    rates: tuple[float, float]
    """Of what AdamW steps"""
    matrix_rates: tuple[float, float]
    """Of what Muon steps"""
    shares: Mapping[str, float] = field(default_factory=lambda: _ALL)
    selects: bool = False
    """Rows see only the entries that the index chooses; before, it only learns to choose"""
    prompt_weight: float = 0.1
    """Of a prompt's token against an answer's"""
    warmup_steps: int = 0
    balance_rate: float = 0.002
    """Step of a router's bias towards even load"""

    def rate_at(self, rates: tuple[float, float], step: int, tokens: int) -> float:
        """step: of the stage, from 0; tokens: of the stage so far."""
        done = min(1.0, tokens / self.tokens)
        rate = rates[0] + (rates[1] - rates[0]) * done
        return rate * min(1.0, (step + 1) / (self.warmup_steps + 1))


STAGES: tuple[Stage, ...] = (
    Stage(
        "short", 20_000_000, 256, 6144, (2e-3, 1.5e-3), (0.02, 0.015), warmup_steps=50
    ),
    Stage("middle", 12_000_000, 1024, 8192, (1.5e-3, 1e-3), (0.015, 0.01), shares=_LONG),
    Stage(
        "long", 10_000_000, 4096, 12288, (1e-3, 5e-4), (0.01, 0.005), shares=_LONG, selects=True,
        prompt_weight=0.05, balance_rate=0.001,
    ),
    Stage(
        "last", 6_000_000, 4096, 12288, (5e-4, 2e-5), (0.005, 0.0002), shares=_LONG, selects=True,
        prompt_weight=0.02, balance_rate=0.0005,
    ),
)  # fmt: skip
DRAFT_STAGES: tuple[Stage, ...] = (
    Stage(
        "draft", 8_000_000, 512, 8192, (2e-3, 5e-5), (0.02, 0.0005), selects=True,
        warmup_steps=50, balance_rate=0.001,
    ),
)  # fmt: skip
"""Of the draft module, behind all others."""
