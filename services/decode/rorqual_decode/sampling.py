"""From a step's logits to tokens, guesses checked on the way.

A guess is taken where it equals the token drawn behind the row before it, with all that the
sequence's rules, mask and noise say at that place. So nothing but time depends on guesses. The
other way to check them, accepting by the ratio of two distributions, takes somewhat more of them,
but then a seed no longer names one answer: it would change with load, instance and drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from rorqual_engine.grammar import new_bitmask
from rorqual_engine.logit_rules import LogitEditor
from rorqual_engine.sampling import RowLogprobs, SamplingState, sample, score
from rorqual_runtime.errors import Internal

from rorqual_decode.generation import Emission, FinishReason, SamplingSpec, TokenScores
from rorqual_decode.running import Running

_GREEDY = SamplingState()


def sampling_state(spec: SamplingSpec, position: int) -> SamplingState:
    """What the sampler needs to draw the token at this absolute position."""
    if is_cheap_draw(spec, has_grammar=False):
        return _GREEDY
    return SamplingState(
        temperature=max(0.0, spec.temperature),
        top_p=spec.top_p if 0 < spec.top_p < 1 else 1.0,
        top_k=spec.top_k,
        min_p=spec.min_p,
        seed=spec.seed,
        position=position,
        num_logprobs=spec.num_logprobs,
    )


def is_cheap_draw(spec: SamplingSpec, *, has_grammar: bool) -> bool:
    """Whether a token is one look for the largest logit: no noise, scores or mask (0.1 ms)."""
    return spec.temperature <= 0 and spec.num_logprobs is None and not has_grammar


@dataclass(slots=True)
class Walk:
    """One sequence's way along its rows of one step, for as long as its guesses hold."""

    sequence: Running
    first_row: int
    token_ids: list[int] = field(default_factory=list)
    scores: list[TokenScores] = field(default_factory=list)
    finish: FinishReason | None = None
    num_guessed: int = 0

    @property
    def goes_on(self) -> bool:
        """The next row's input is the token that has been drawn before it."""
        depth = len(self.token_ids)
        if self.finish is not None or depth == self.sequence.num_rows:
            return False
        return depth == 0 or self.sequence.chunk.token_ids[depth] == self.token_ids[-1]

    def next_rows(self) -> range:
        """Those that can be drawn for now: what a rule or score is to be, a row can only say when
        the one before has its token."""
        sequence = self.sequence
        draws_ahead = sequence.editor is None and sequence.spec.sampling.num_logprobs is None
        depth = len(self.token_ids)
        last = sequence.num_rows if draws_ahead else depth + 1
        return range(self.first_row + depth, self.first_row + last)

    def take(
        self, logits: torch.Tensor, row: int, drawn: int, logprobs: RowLogprobs | None
    ) -> None:
        """What was drawn from this row of the logits, or what the grammar needs instead."""
        token_id = self.sequence.admit(drawn)
        if logprobs is not None and token_id != drawn:
            (own,) = score(logits[row : row + 1], [token_id], [0])
            logprobs = replace(logprobs, logprob=own.logprob)
        self.finish = self.sequence.take(token_id)
        if self.finish is FinishReason.ERROR:
            return
        self.token_ids.append(token_id)
        if logprobs is not None:
            self.scores.append(_scores(token_id, logprobs))

    def end(self) -> None:
        """The sequence goes on behind what it was given."""
        self.num_guessed = self.sequence.num_rows - 1
        self.sequence.end_step(self.token_ids)

    def emission(self) -> Emission:
        """What the step gave the sequence."""
        is_fault = self.finish is FinishReason.ERROR
        error = Internal("a token was drawn against its grammar") if is_fault else None
        ids, scores = tuple(self.token_ids), tuple(self.scores)
        return Emission(self.sequence.spec.key, ids, scores, self.finish, error, self.num_guessed)


class Draws(NamedTuple):
    """Rows that can be drawn for now, and how: all but their logits."""

    owners: list[tuple[Walk, int]]
    """A walk and one of its rows, ascending."""
    states: list[SamplingState]
    bitmask: torch.Tensor | None
    editors: list[LogitEditor | None]


def begin_walks(sequences: Sequence[Running]) -> list[Walk]:
    """Of sequences whose rows lie behind each other, none drawn yet."""
    firsts = accumulate((sequence.num_rows for sequence in sequences), initial=0)
    return [Walk(sequence, first) for sequence, first in zip(sequences, firsts, strict=False)]


def prepare_draws(walks: Sequence[Walk], vocab_size: int) -> Draws:
    """How to draw the next rows of walks that go on. A mask behind a guess is that of an output
    which holds the guess."""
    owners = [(walk, row) for walk in walks for row in walk.next_rows()]
    states = [
        sampling_state(w.sequence.spec.sampling, w.sequence.next_position + _depth(w, row))
        for w, row in owners
    ]
    editors = [walk.sequence.editor for walk, _ in owners]
    return Draws(owners, states, _bitmask(walks, len(owners), vocab_size), editors)


def draw_tokens(logits: torch.Tensor, walks: Sequence[Walk], draws: Draws) -> None:
    """Give every sequence its next tokens: one, and one more for each guess that turns out to be
    the token drawn.

    logits: [rows of all walks, vocab], as `sample` takes them; draws: of all walks
    """
    going = walks
    while going:
        _advance(logits, draws)
        going = [walk for walk in going if walk.goes_on]
        if going:
            draws = prepare_draws(going, logits.shape[1])
    for walk in walks:
        walk.end()


def choose_tokens(logits: torch.Tensor, sequences: Sequence[Running]) -> list[Emission]:
    """`draw_tokens` of these, from the beginning.

    logits: [rows of all sequences, vocab]
    """
    walks = begin_walks(sequences)
    draw_tokens(logits, walks, prepare_draws(walks, logits.shape[1]))
    return [walk.emission() for walk in walks]


def _advance(logits: torch.Tensor, draws: Draws) -> None:
    """Each walk by the rows that can be drawn for now."""
    part = logits
    if len(draws.owners) < len(logits):
        part = logits[[row for _, row in draws.owners]]
    sampled = sample(part, draws.states, draws.bitmask, draws.editors)
    drawn_ids = sampled.ids.tolist()
    for place, (walk, row) in enumerate(draws.owners):
        if walk.goes_on and _depth(walk, row) == 0:
            walk.take(part, place, drawn_ids[place], sampled.logprobs[place])


def _depth(walk: Walk, row: int) -> int:
    """How many of the walk's rows come before this one and have no token yet."""
    return row - walk.first_row - len(walk.token_ids)


def _bitmask(walks: Sequence[Walk], num_rows: int, vocab_size: int) -> torch.Tensor | None:
    """Tokens the grammars allow at each row that can be drawn; None when no walk has a grammar."""
    if all(walk.sequence.grammar is None for walk in walks):
        return None
    bitmask, place = new_bitmask(num_rows, vocab_size), 0
    for walk in walks:
        count, depth = len(walk.next_rows()), len(walk.token_ids)
        if walk.sequence.grammar is not None:
            ids = walk.sequence.chunk.token_ids[depth + 1 : depth + count]
            guesses = [int(token_id) for token_id in ids]
            walk.sequence.grammar.fill_masks(bitmask[place : place + count], guesses)
        place += count
    return bitmask


def _scores(token_id: int, logprobs: RowLogprobs) -> TokenScores:
    return TokenScores(
        token_id, logprobs.logprob, tuple(logprobs.top_ids), tuple(logprobs.top_logprobs)
    )
