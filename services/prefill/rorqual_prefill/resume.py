"""Where the computation of a prompt begins, and the window state that it needs there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from rorqual_engine.batch import SequenceChunk
from rorqual_policy.blocks import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Resume:
    """Tokens before first_row are not run. Those from there to num_stored are run again: their
    Block KV is there, their windows are not."""

    first_row: int
    num_stored: int
    has_window: bool
    """The window state at first_row is kept somewhere; nothing is run again."""

    @property
    def num_blocks(self) -> int:
        """Stored blocks that are of use."""
        return self.num_stored // BLOCK_TOKENS


def choose_resume(
    num_blocks: int, num_replayed: Callable[[int], int], is_kept: Callable[[int], bool]
) -> Resume:
    """The fewest rows that a prefix of num_blocks stored blocks leaves to run.

    num_replayed(tokens): rows to run again where a prefix of so many tokens has no window;
    is_kept(blocks): whether the window after so many blocks is kept. A window beats a replay of as
    many rows, because what follows is then as if everything had been computed.
    """
    num_stored = num_blocks * BLOCK_TOKENS
    replay_from = num_stored - num_replayed(num_stored)
    for blocks in range(num_blocks, 0, -1):
        if blocks * BLOCK_TOKENS < replay_from:
            break
        if is_kept(blocks):
            return Resume(blocks * BLOCK_TOKENS, blocks * BLOCK_TOKENS, True)
    return Resume(replay_from, num_stored if replay_from else 0, False)


@dataclass(eq=False, slots=True)
class PromptWindow:
    """The window slot of a prompt, how its chunks use it, and what is taken from it."""

    slot: int
    floor: int = 0
    """Where a replay began; no window key before it is read."""
    num_stored: int = 0
    previous_ids: tuple[int, ...] = ()
    """Ids before the floor."""
    keep_at: int = 0
    """A chunk ends here, so that the window can be kept for other prompts; 0 = nowhere."""
    answer_at: int | None = None
    """Rows from here on are output of an earlier run, and run as they did there, each through every
    layer; None = there are none."""
    kept: np.ndarray | None = field(default=None, init=False)
    """Snapshot at keep_at."""
    at_end: np.ndarray | None = field(default=None, init=False)
    """Snapshot behind the whole prompt."""

    def cut(self, start: int, num_tokens: int) -> int:
        """Length of a chunk that does not run past keep_at, nor from the prompt into its answer."""
        ends = (end for end in (self.keep_at, self.answer_at or 0) if end > start)
        return min(num_tokens, min(ends, default=start + num_tokens) - start)

    def prepare(self, chunk: SequenceChunk) -> None:
        """Tell a chunk of the prompt what it needs to know."""
        chunk.window = self.slot
        chunk.defers_late = self.answer_at is None or chunk.start < self.answer_at
        chunk.ends_prompt = chunk.start + len(chunk.token_ids) == self.answer_at
        chunk.window_floor, chunk.num_stored = self.floor, self.num_stored
        if chunk.start == self.floor:
            chunk.previous_ids = self.previous_ids
