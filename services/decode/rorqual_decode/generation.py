"""What decode knows of one generation: its key, its request and what came out so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from rorqual_engine.logit_rules import NO_RULES, LogitRules
from rorqual_policy.provenance import Provenance
from rorqual_runtime.errors import ServingError


class ChoiceKey(NamedTuple):
    """Identity of a generation across every service."""

    request_id: str
    choice_index: int


class GenerationKey(NamedTuple):
    """Identity of one run of a generation; handovers are idempotent by it."""

    request_id: str
    choice_index: int
    run: int = 0
    """The highest one counts."""

    @property
    def choice(self) -> ChoiceKey:
        """The generation, whichever run of it."""
        return ChoiceKey(self.request_id, self.choice_index)


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
    """Without the output of earlier runs."""
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
    num_output_tokens: int = 0
    """Of earlier runs: it goes on behind them."""

    @property
    def num_tokens(self) -> int:
        """With which it begins here."""
        return self.num_prompt_tokens + self.num_output_tokens


@dataclass(frozen=True, slots=True)
class Origin:
    """What a generation came with that can not be told from its tokens. Wire values."""

    generation: Any
    """Without its prompt."""
    compiled_grammar: Any
    """None without constraint."""


@dataclass(frozen=True, slots=True)
class GenerationState:
    """All that another instance needs to go on, next to the KV: grammar, penalties, stop rule and
    noise follow from the tokens and their places."""

    origin: Origin
    spec: GenerationSpec
    token_ids: np.ndarray
    """int32: prompt and output. Of all but the last one there is KV."""
    last_block_key: bytes
    """Of the last full block that has its KV; empty where there is none."""

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose KV goes along."""
        return len(self.token_ids) - 1

    @property
    def num_output_tokens(self) -> int:
        """Of the tokens, the last so many."""
        return len(self.token_ids) - self.spec.num_prompt_tokens


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
    Scores of tokens of an earlier run are not here: there are none before `first_scored`.
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
    must_announce: bool = False
    """Its reader is to know that it goes on here."""
    first_scored: int = 0
    first_token_unix_s: float = 0.0
    finished_monotonic_s: float = 0.0

    def go_on_behind(self, token_ids: Sequence[int]) -> None:
        """An earlier run gave these; its reader has them, and hears of us before the next one."""
        self.token_ids[:] = token_ids
        self.num_published = self.last_published_from = self.first_scored = len(token_ids)
        self.must_announce = True

    def append(self, emission: Emission) -> None:
        """Take over what a step produced."""
        self.token_ids.extend(emission.token_ids)
        self.scores.extend(emission.scores)
        self.guesses.add(emission)
        if emission.finish is not None:
            self.finish, self.error = emission.finish, emission.error

    def can_give(self, start: int) -> bool:
        """Whether the tokens from there on are here, with their scores where they have some."""
        is_whole = self.spec.sampling.num_logprobs is None or start >= self.first_scored
        return is_whole and start <= len(self.token_ids)

    @property
    def has_news(self) -> bool:
        """There is something its reader has never been sent."""
        return self.has_news_before(len(self.token_ids))

    def has_news_before(self, num_tokens: int) -> bool:
        """The same of its first so many tokens."""
        return (
            self.must_announce
            or self.num_published < num_tokens
            or (self.finish is not None and not self.is_finish_published)
        )

    @property
    def must_send(self) -> bool:
        """There are news, or the last slice is due once more."""
        return self.has_news or self.must_repeat_last
