"""What this instance says about itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rorqual_runtime.expert_load import ExpertLoad

from rorqual_decode.generation import GuessTotals


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """What this instance reports a few times a second."""

    num_active_requests: int
    num_running: int
    max_running: int
    kv_tokens: int
    step_s: float
    guesses: GuessTotals
    num_moved: int
    """Since the start."""
    step_times: Sequence[float] = ()
    """Seconds a step, a request and a KV token; empty = not known."""
    num_cancelled: Mapping[str, int] = field(default_factory=dict)
    """By phase, since start."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine's model and cache add to that."""

    num_used_pages: int
    num_total_pages: int
    num_used_windows: int
    num_total_windows: int
    model_fingerprint: str
    max_context_tokens: int
    experts: Sequence[ExpertLoad] = ()


@dataclass(frozen=True, slots=True)
class PauseFacts:
    """Generations that stand aside for want of pages."""

    num_paused: int
    num_pauses: int
    """Since the start."""


@dataclass(frozen=True, slots=True)
class RelayFacts:
    """What those choose by who might ask to have stored blocks read."""

    host_id: str
    queued_bytes: int
    bytes_per_s: float
    """As measured lately; 0 = not."""
    num_blocks: int
    """Read for others since start."""
    store_id: str
    """Of the store that is read."""
