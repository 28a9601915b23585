"""What decode knows of one generation: its key, its request and what came out so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from rorqual_engine.logit_rules import NO_RULES, LogitRules
from rorqual_policy.provenance import Provenance
from rorqual_runtime.errors import ServingError


class GenerationKey(NamedTuple):
    """Identity of a generation across every service; handovers are idempotent by it."""

    request_id: str
    choice_index: int


class FinishReason(IntEnum):
    """Why a generation ended; numbers equal the wire's."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    ERROR = 4


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """Sampling as the request asked for it."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    max_new_tokens: int
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    num_logprobs: int | None
    """None: no logprobs; n: the token's own and the n best."""
    rules: LogitRules = NO_RULES
    """Penalties, biases and minimum length."""


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """One generation, as handed over."""

    key: GenerationKey
    model: str
    recipe_id: str
    num_prompt_tokens: int
    num_cached_tokens: int
    sampling: SamplingSpec
    cache_namespace: str
    traffic_class: int
    deadline_unix_s: float
    """0 = none."""
    submitted_unix_s: float
    tenant: str = ""
    """Whose stored blocks its prompt and answer become."""
    provenance: Provenance = Provenance.EXACT
    """Of the KV that was computed for it, and of all that follows."""
    cache_miss_reason: str = ""
    """Why no more of the prompt was cached; empty where nothing was missed."""
    cache_ttl_s: int = 0
    """How long its blocks are kept; 0 = as its traffic class says."""
    has_siblings: bool = False
    """Its request has more choices: they end at different times and are read again together."""


class TokenScores(NamedTuple):
    """Log probabilities at one output position."""

    token_id: int
    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class Emission(NamedTuple):
    """Tokens one step gave one generation; the engine thread makes it, the event loop reads it."""

    key: GenerationKey
    token_ids: tuple[int, ...]
    scores: tuple[TokenScores, ...]
    finish: FinishReason | None
    error: ServingError | None = None
    num_guessed: int = 0
    """Guesses that the step checked; all of its tokens but the last are taken ones."""


@dataclass(slots=True)
class GuessTotals:
    """How guesses fared."""

    num_rounds: int = 0
    """Steps of one sequence that checked any."""
    num_guessed: int = 0
    num_taken: int = 0

    def add(self, emission: Emission) -> None:
        """What a step says of one sequence."""
        if emission.num_guessed:
            self.num_rounds += 1
            self.num_guessed += emission.num_guessed
            self.num_taken += max(0, len(emission.token_ids) - 1)


@dataclass(slots=True)
class OutputStream:
    """Every token of one generation, kept until its reader can't ask for it any more.

    Owned by the event loop. `num_published` is the publisher's cursor: tokens before it are out.
    """

    spec: GenerationSpec
    token_ids: list[int] = field(default_factory=list)
    scores: list[TokenScores] = field(default_factory=list)
    guesses: GuessTotals = field(default_factory=GuessTotals)
    finish: FinishReason | None = None
    error: ServingError | None = None
    num_published: int = 0
    last_published_from: int = 0
    is_finish_published: bool = False
    must_repeat_last: bool = False
    """The last slice may have been lost on its way."""
    first_token_unix_s: float = 0.0
    finished_monotonic_s: float = 0.0

    def append(self, emission: Emission) -> None:
        """Take over what a step produced."""
        self.token_ids.extend(emission.token_ids)
        self.scores.extend(emission.scores)
        self.guesses.add(emission)
        if emission.finish is not None:
            self.finish, self.error = emission.finish, emission.error

    @property
    def has_news(self) -> bool:
        """There is something its reader has never been sent."""
        return self.num_published < len(self.token_ids) or (
            self.finish is not None and not self.is_finish_published
        )

    @property
    def must_send(self) -> bool:
        """There are news, or the last slice is due once more."""
        return self.has_news or self.must_repeat_last
