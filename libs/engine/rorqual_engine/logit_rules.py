"""What one request does to its own row of logits before a token is chosen.

In this order: the repetition penalty scales, the other penalties and the bias are added, end tokens
are held back. Only tokens that a rule can touch are looked at, so a step costs what the answer has
of different tokens, not what the vocabulary has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

FULL_BIAS = 100.0
"""A bias of this much forces its token, one of its negative bans it."""
_OUTRANKS = np.float32(1e4)
"""More than two logits ever differ by, so nothing else stands a chance; yet finite: where a grammar
leaves banned tokens only, the likeliest of those is still a choice."""
_FIRST_CAPACITY = 64


@dataclass(frozen=True, slots=True)
class LogitRules:
    """Raises: ValueError for a number out of range."""

    frequency_penalty: float = 0.0
    """Taken from a token's logit once for each time the answer holds it."""
    presence_penalty: float = 0.0
    """Taken once from every token that the answer holds."""
    repetition_penalty: float = 1.0
    """> 0; a token of prompt or answer has a positive logit divided, a negative one multiplied."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, added to its logit); from FULL_BIAS on it forces, from -FULL_BIAS on it bans."""
    min_new_tokens: int = 0
    """End tokens are banned until the answer has so many tokens."""

    def __post_init__(self) -> None:
        added = (self.frequency_penalty, self.presence_penalty, *(b for _, b in self.logit_bias))
        if not all(map(math.isfinite, added)):
            raise ValueError(f"penalties and bias must be finite: {self}")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty out of range: {self.repetition_penalty}")

    @property
    def is_neutral(self) -> bool:
        """Nothing is ever changed."""
        return self == NO_RULES

    @property
    def counts_tokens(self) -> bool:
        """What the answer holds matters."""
        return (self.frequency_penalty, self.presence_penalty, self.repetition_penalty) != (0, 0, 1)


NO_RULES = LogitRules()


class LogitEditor:
    """The rules of one sequence, and what they need to know of it. Not for several threads."""

    def __init__(
        self, rules: LogitRules, prompt_ids: Sequence[int], end_ids: Sequence[int]
    ) -> None:
        """prompt_ids: all tokens of the prompt; only a repetition penalty looks at them.

        Every id must lie within the vocabulary of the rows that follow.
        """
        self._rules = rules
        self._num_output = 0
        repeats = rules.repetition_penalty != 1
        seen = np.unique(np.asarray(prompt_ids, np.int64)) if repeats else np.empty(0, np.int64)
        held_back = sorted(end_ids) if rules.min_new_tokens else []
        others = {token: None for token, _ in rules.logit_bias} | dict.fromkeys(held_back)
        known = set(seen.tolist())
        tokens = [*seen.tolist(), *(token for token in others if token not in known)]
        self._slots = {token: slot for slot, token in enumerate(tokens)}
        self._reserve(max(_FIRST_CAPACITY, 2 * len(tokens)))
        self._ids[: len(tokens)] = tokens
        self._is_seen[: len(seen)] = True
        for token, bias in rules.logit_bias:
            self._bias[self._slots[token]] += _strength(bias)
        self._shift[:] = self._bias
        self._end_slots = np.array([self._slots[token] for token in held_back], np.int64)

    def _reserve(self, capacity: int) -> None:
        self._ids = np.zeros(capacity, np.int64)
        self._counts = np.zeros(capacity, np.int64)
        self._is_seen = np.zeros(capacity, np.bool_)
        self._bias = np.zeros(capacity, np.float32)
        self._shift = np.zeros(capacity, np.float32)

    @property
    def is_active(self) -> bool:
        """Whether `apply` would look at anything at this step."""
        return bool(self._slots) and (
            self._rules.counts_tokens or bool(self._rules.logit_bias) or self._holds_back
        )

    @property
    def _holds_back(self) -> bool:
        return self._num_output < self._rules.min_new_tokens

    def apply(self, row: torch.Tensor) -> None:
        """Changes one row of logits, float32 [vocab], in place."""
        num = len(self._slots)
        index = torch.from_numpy(self._ids[:num]).to(row.device)
        values: npt.NDArray[np.float32] = row[index].cpu().numpy()
        penalty = np.float32(self._rules.repetition_penalty)
        if penalty != 1:
            scaled = np.where(values > 0, values / penalty, values * penalty)
            values = np.where(self._is_seen[:num], scaled, values)
        values = values + self._shift[:num]
        if self._holds_back:
            values[self._end_slots] -= _OUTRANKS
        row[index] = torch.from_numpy(values).to(row.device)

    def note(self, token_id: int) -> None:
        """The answer has one more token."""
        self._num_output += 1
        rules = self._rules
        if not rules.counts_tokens:
            return
        slot = self._slot_of(token_id)
        self._counts[slot] += 1
        self._is_seen[slot] = True
        penalty = rules.presence_penalty + rules.frequency_penalty * float(self._counts[slot])
        self._shift[slot] = float(self._bias[slot]) - penalty

    def _slot_of(self, token_id: int) -> int:
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            self._grow()
        self._ids[slot] = token_id
        return slot

    def _grow(self) -> None:
        self._ids, self._counts = _doubled(self._ids), _doubled(self._counts)
        self._is_seen, self._bias = _doubled(self._is_seen), _doubled(self._bias)
        self._shift = _doubled(self._shift)


def make_editor(
    rules: LogitRules, prompt_ids: Sequence[int], end_ids: Sequence[int]
) -> LogitEditor | None:
    """The editor of one sequence; None when its rules change nothing."""
    return None if rules.is_neutral else LogitEditor(rules, prompt_ids, end_ids)


def _doubled(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.concatenate([array, np.zeros_like(array)])


def _strength(bias: float) -> np.float32:
    if bias >= FULL_BIAS:
        return _OUTRANKS
    return -_OUTRANKS if bias <= -FULL_BIAS else np.float32(bias)
