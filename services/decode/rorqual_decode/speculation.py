"""Which guesses a step checks: text that a grammar forces, else the drafter's, as many as are worth
their rows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from rorqual_engine.speculation import Drafter, Guesses, GuessRequest, NoDrafter
from rorqual_policy.draft_budget import (
    LAG_STEPS,
    MOST_GUESSES,
    NO_PAUSE,
    BudgetDecision,
    GuessSchedule,
    StepProfile,
    allocate_guesses,
    calibrated_costs,
    choose_budget,
    choose_pause,
    note_step,
    profile_of,
    survivals,
)
from rorqual_policy.draft_trust import full_trust, note_verdicts, trusted_chances

from rorqual_decode.generation import GenerationKey
from rorqual_decode.running import Running
from rorqual_decode.sampling import sampling_state

_GUESSING_WEIGHT = 0.1

Chances = tuple[float, ...]


class Speculation:
    """Guesses before every step. Used by the engine thread only.

    Where a grammar forces the text that comes next, one forward checks its tokens instead of one
    each. They are guesses like others: the model may spell that text by other tokens.
    """

    def __init__(
        self,
        drafter: Drafter,
        schedule: GuessSchedule = "fixed",
        profile: StepProfile | None = None,
    ) -> None:
        """profile: of this model here; needed unless the schedule is fixed."""
        if schedule != "fixed" and profile is None:
            raise ValueError(f"schedule {schedule} needs a profile of steps")
        self._drafter, self._schedule, self._profile = drafter, schedule, profile
        self._past: deque[dict[GenerationKey, Chances]] = deque(maxlen=LAG_STEPS)
        self._trust = full_trust(MOST_GUESSES)
        self._checked: list[tuple[Running, Sequence[float]]] = []
        """By the step under way, with their confidences."""
        self._has_asked = False
        """The drafter, for the step under way."""
        self._guessing_s = 0.0
        self._costs = calibrated_costs(profile) if profile else None
        """Of steps by now, on the base of the profile."""
        self._guessed_s = 0.0
        """When the guesses of the step under way were there."""
        self._pause, self._num_paused = NO_PAUSE, 0
        self._known: set[GenerationKey] = set()
        """Who was there when the pause began, and who has come since."""
        self._most_known = 0
        self._is_by_others = False

    def guess(self, sequences: Sequence[Running]) -> None:
        """Put the guesses that are worth it behind the sequences' next rows."""
        self._guess(sequences)
        self._guessed_s = time.perf_counter()

    def _guess(self, sequences: Sequence[Running]) -> None:
        self._checked, self._has_asked = [], False
        for sequence in sequences:
            _propose_forced(sequence)
        asked = [s for s in sequences if s.num_left > 1 and not s.has_forced]
        if not asked or not self._drafter.num_guesses:
            return
        if self._is_pausing(asked):
            return
        found = self._ask(asked)
        self._has_asked = True
        num_rows = sum(sequence.num_rows for sequence in sequences)
        lengths = self._choose_lengths(asked, found, num_rows, len(sequences))
        for sequence, guesses, length in zip(asked, found, lengths, strict=True):
            if length:
                sequence.propose(guesses.token_ids[:length])
                self._checked.append((sequence, guesses.confidences[:length]))

    def note_step(self, num_rows: int, num_sequences: int) -> None:
        """The step behind these guesses has its tokens."""
        if self._has_asked:
            self._learn()
        if self._profile is not None and self._costs is not None:
            took_s = time.perf_counter() - self._guessed_s
            self._costs = note_step(self._costs, self._profile, num_rows, num_sequences, took_s)

    def _learn(self) -> None:
        """What became of the guesses that were checked."""
        verdicts = [(sure[: s.num_checked], s.num_right) for s, sure in self._checked]
        self._trust = note_verdicts(self._trust, verdicts)

    def _ask(self, asked: Sequence[Running]) -> list[Guesses]:
        began_s = time.perf_counter()
        found = self._drafter.guess([_request(sequence) for sequence in asked])
        took_s = time.perf_counter() - began_s
        weight = _GUESSING_WEIGHT if self._guessing_s else 1.0
        self._guessing_s += weight * (took_s - self._guessing_s)
        return found

    def _choose_lengths(
        self,
        asked: Sequence[Running],
        found: Sequence[Guesses],
        num_rows: int,
        num_sequences: int,
    ) -> list[int]:
        if self._profile is None or self._costs is None or self._schedule == "fixed":
            return [len(guesses.token_ids) for guesses in found]
        chances = [survivals(trusted_chances(self._trust, g.confidences)) for g in found]
        known = chances if self._schedule == "current" else self._lagged(asked, chances)
        profile = profile_of(self._profile, self._costs, num_sequences)
        budget = choose_budget(known, num_rows, profile, self._guessing_s)
        if any(chances):
            self._begin_pause(asked, budget)
        return allocate_guesses(chances, budget.num_guesses)

    def _begin_pause(self, asked: Sequence[Running], budget: BudgetDecision) -> None:
        """Or none, where guessing pays."""
        self._pause = choose_pause(budget, len(asked), self._pause, is_by_others=self._is_by_others)
        self._is_by_others = False
        self._num_paused = self._pause.num_steps
        if self._num_paused:
            self._known = {sequence.spec.key for sequence in asked}
            self._most_known = len(self._known) + self._pause.num_others

    def _is_pausing(self, asked: Sequence[Running]) -> bool:
        if not self._num_paused:
            return False
        self._known.update(sequence.spec.key for sequence in asked)
        if len(self._known) >= self._most_known:
            self._num_paused, self._is_by_others = 0, True
            return False
        self._num_paused -= 1
        return True

    def _lagged(self, asked: Sequence[Running], chances: Sequence[Chances]) -> list[Chances]:
        """Of the same generations LAG_STEPS steps before; what is not known is hoped for."""
        then = self._past[0] if len(self._past) == LAG_STEPS else {}
        keys = [sequence.spec.key for sequence in asked]
        self._past.append(dict(zip(keys, chances, strict=True)))
        hoped = (1.0,) * self._drafter.num_guesses
        return [then.get(key, hoped) for key in keys]


NO_SPECULATION = Speculation(NoDrafter())


def _propose_forced(sequence: Running) -> None:
    """Half as many after each step that took none, in the end none: some models spell forced text
    by other tokens throughout."""
    most = min(sequence.num_left - 1, MOST_GUESSES >> sequence.num_misspelt)
    if sequence.grammar is None or most < 1:
        return
    forced = sequence.grammar.forced_tokens(most)
    if forced:
        sequence.propose(forced, are_forced=True)


def _request(sequence: Running) -> GuessRequest:
    position = sequence.next_position
    return GuessRequest(
        memory=sequence.memory,
        token_id=int(sequence.chunk.token_ids[0]),
        position=position,
        sampling=sampling_state(sequence.spec.sampling, position),
        window=sequence.window,
        num_wanted=sequence.num_left - 1,
        pages=sequence.pages,
    )
