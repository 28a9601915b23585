"""One generation while it runs: what the engine thread needs to take it one token further."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import eq
from typing import NamedTuple

import numpy as np
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.grammar import GrammarState
from rorqual_engine.logit_rules import LogitEditor
from rorqual_engine.speculation import Memory
from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.provenance import Provenance

from rorqual_decode.block_chain import BlockChain
from rorqual_decode.generation import FinishReason, GenerationSpec
from rorqual_decode.page_hold import PageHold
from rorqual_decode.stopping import StopRule


class WindowToKeep(NamedTuple):
    """Window state behind a block, for prompts that begin with the same tokens."""

    key: bytes
    num_tokens: int
    snapshot: np.ndarray
    provenance: Provenance


class CompletedBlock(NamedTuple):
    """A block whose last token has got its KV."""

    page: int
    key: bytes
    num_tokens: int
    """Up to its end."""


@dataclass(eq=False, slots=True)
class Running:
    """A sequence with its pages. Owned by whoever steps it: first the handover, then the engine.

    The KV of all tokens but the last one is in `pages`; that one is the next row to run, and
    guesses about those behind it are the rows after.
    """

    spec: GenerationSpec
    pages: list[int]
    hold: PageHold
    stop: StopRule
    chain: BlockChain
    grammar: GrammarState | None = None
    editor: LogitEditor | None = None
    """Penalties and biases; None when the request has none."""
    num_output: int = 0
    window: int | None = None
    """Window slot; None where the model has no windows."""
    kept: WindowToKeep | None = field(default=None, init=False)
    """Window behind the last block that was completed here."""
    memory: Memory = field(default_factory=Memory)
    """What the drafter keeps of it."""
    completed: list[CompletedBlock] = field(default_factory=list, init=False)
    """By the last step."""
    chunk: SequenceChunk = field(init=False)
    """The next rows to run; valid once the first token is there."""
    has_forced: bool = False
    """The next step's guesses are its grammar's."""
    num_checked: int = 0
    """Guesses of the last step that a token was drawn for."""
    num_right: int = 0
    """Guesses of the last step that were taken."""
    num_misspelt: int = 0
    """Steps one after the other in which no token of forced text was spelt as guessed."""
    is_cancelled: bool = False
    """Set from any thread; the engine lets go at its next step."""
    on_out: Callable[[], None] | None = None
    """Likewise: who wants it back."""

    def __post_init__(self) -> None:
        start = self.next_position - 1
        self.chunk = SequenceChunk((), start, self.pages, True, self.window)

    def go_on_behind(self, output_ids: Sequence[int], *, has_last: bool) -> FinishReason | None:
        """Earlier runs gave these. Says whether the sequence has ended with them already.

        has_last: the KV of the last one is there, too; else it is the next row to run.
        """
        finish = None
        for token_id in output_ids:
            finish = self.take(token_id)
            if finish is not None:
                break
        self.chunk.start = self.next_position - 1
        self.chunk.token_ids = () if has_last else tuple(output_ids[-1:])
        return finish

    def settle(self, pages: Sequence[int], hold: PageHold, window: int | None) -> None:
        """Its KV lies here now, as many pages as before; it takes part in no step meanwhile."""
        self.pages[:] = pages
        self.hold, self.window = hold, window
        self.chunk.window = window

    @property
    def is_leaving(self) -> bool:
        """It takes part in no further step."""
        return self.is_cancelled or self.on_out is not None

    @property
    def next_position(self) -> int:
        """Absolute position of the token to draw next: the length of the sequence so far."""
        return self.spec.num_prompt_tokens + self.num_output

    @property
    def max_kv_tokens(self) -> int:
        """Tokens whose KV it can ever need: nobody reads the last one's."""
        return self.spec.num_prompt_tokens + self.stop.max_output_tokens - 1

    @property
    def num_left(self) -> int:
        """Tokens it may still give."""
        return self.stop.max_output_tokens - self.num_output

    @property
    def num_rows(self) -> int:
        """Rows of logits that the next step has for it."""
        return max(1, len(self.chunk.token_ids))

    def propose(self, token_ids: Sequence[int], *, are_forced: bool = False) -> None:
        """The next step also runs these guesses, fewer than num_left.

        are_forced: they come from the grammar, not from the drafter.
        """
        self.has_forced = are_forced
        self.chunk.token_ids = (*self.chunk.token_ids, *token_ids)
        self.chunk.all_logits = True

    def admit(self, token_id: int) -> int:
        """The drawn token, or the one that its grammar needs now to be complete in time."""
        if self.grammar is None:
            return token_id
        return self.grammar.admit(token_id, self.num_left - 1)

    def take(self, token_id: int) -> FinishReason | None:
        """Append one sampled token; says whether the sequence ends with it."""
        self.num_output += 1
        if self.editor is not None:
            self.editor.note(token_id)
        if self.grammar is not None and not self.grammar.accept(token_id):
            return FinishReason.ERROR
        grammar_finished = self.grammar is not None and self.grammar.is_finished
        return self.stop.finish_after(token_id, self.num_output, grammar_finished)

    def end_step(self, token_ids: Sequence[int]) -> None:
        """A step gave these: the rows they were drawn behind count as run, later ones do not."""
        chunk = self.chunk
        guesses = chunk.token_ids[1:]
        self.num_checked = min(len(guesses), len(token_ids))
        self.num_right = sum(map(eq, guesses, token_ids))
        row_ids = [int(token_id) for token_id in chunk.token_ids[: len(token_ids)]]
        self.completed = list(self._completed_by(row_ids))
        if self.has_forced:
            self.num_misspelt = 0 if self.num_right else self.num_misspelt + 1
        elif guesses:
            self.memory.note_verdict(len(guesses), self.num_right)
        self.memory.note_tokens(token_ids)
        chunk.start += len(token_ids)
        chunk.token_ids = tuple(token_ids[-1:])
        chunk.all_logits = self.has_forced = False

    def _completed_by(self, row_ids: Sequence[int]) -> Iterator[CompletedBlock]:
        for position, token_id in enumerate(row_ids, self.chunk.start):
            key = self.chain.push(token_id)
            if key is not None:
                page = self.pages[position // BLOCK_TOKENS]
                yield CompletedBlock(page, key, position + 1)
