"""What is trained, in which order: stages as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_ALL: Mapping[str, float] = {
    "recall": 2.5,
    "instructions": 1.0,
    "copy": 1.0,
    "repeat": 0.5,
    "count": 0.8,
    "sort": 0.8,
    "arithmetic": 1.0,
    "tools": 3.0,
    "json": 1.5,
    "shapes": 4.0,
}
_LONG: Mapping[str, float] = {**_ALL, "recall": 1.8}
_RECALLS: Mapping[str, float] = {**_ALL, "recall": 3.0}


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
        "short", 3_000_000, 320, 4096, (3e-3, 2.5e-3), (0.03, 0.025), warmup_steps=30,
        balance_rate=0.004,
    ),
    Stage("middle", 3_000_000, 1024, 4096, (2.5e-3, 2e-3), (0.025, 0.018)),
    Stage(
        "long", 4_000_000, 4096, 6144, (2e-3, 1e-3), (0.018, 0.009), shares=_LONG, selects=True,
        prompt_weight=0.05, balance_rate=0.001,
    ),
    Stage(
        "last", 1_800_000, 4096, 8192, (1e-3, 2e-5), (0.009, 0.0002), shares=_LONG, selects=True,
        prompt_weight=0.02, balance_rate=0.0005,
    ),
    Stage(
        "again", 1_500_000, 4096, 8192, (6e-4, 2e-5), (0.0055, 0.0002), shares=_RECALLS,
        selects=True, prompt_weight=0.02, warmup_steps=10, balance_rate=0.0005,
    ),
)  # fmt: skip
DRAFT_STAGES: tuple[Stage, ...] = (
    Stage(
        "draft", 2_000_000, 512, 4096, (3e-3, 5e-5), (0.03, 0.0005), selects=True,
        warmup_steps=50, balance_rate=0.001,
    ),
    Stage(
        "draft again", 4_000_000, 512, 4096, (2e-3, 2e-5), (0.02, 0.0002), selects=True,
        warmup_steps=20, balance_rate=0.0005,
    ),
)  # fmt: skip
"""Of the draft module, behind all others."""
