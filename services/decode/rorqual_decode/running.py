"""One generation while it runs: what the engine thread needs to take it one token further."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.grammar import GrammarState
from rorqual_engine.logit_rules import LogitEditor
from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_runtime.errors import Internal

from rorqual_decode.block_chain import BlockChain
from rorqual_decode.generation import Emission, FinishReason, GenerationSpec, TokenScores
from rorqual_decode.page_hold import PageHold
from rorqual_decode.stopping import StopRule


class KeptWindow(NamedTuple):
    """Window state behind a block, for prompts that begin with the same tokens."""

    key: bytes
    snapshot: np.ndarray


@dataclass(eq=False, slots=True)
class Running:
    """A sequence with its pages. Owned by whoever steps it: first the handover, then the engine.

    The KV of all tokens but the last one is in `pages`; that one is the next row to run.
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
    kept: KeptWindow | None = field(default=None, init=False)
    """Window behind the last block that was completed here."""
    chunk: SequenceChunk = field(init=False)
    """The next row to run; valid once the first token is there."""
    is_cancelled: bool = False
    """Set from any thread; the engine lets go at its next step."""

    def __post_init__(self) -> None:
        start = self.spec.num_prompt_tokens - 1
        self.chunk = SequenceChunk((), start, self.pages, True, self.window)

    @property
    def next_position(self) -> int:
        """Absolute position of the token to draw next: the length of the sequence so far."""
        return self.spec.num_prompt_tokens + self.num_output

    def admit(self, token_id: int) -> int:
        """The drawn token, or the one that its grammar needs now to be complete in time."""
        if self.grammar is None:
            return token_id
        return self.grammar.admit(token_id, self.stop.max_output_tokens - self.num_output - 1)

    def take(self, token_id: int, scores: TokenScores | None) -> Emission:
        """Append one sampled token; the emission says whether the sequence ends with it."""
        self.chunk.token_ids = (token_id,)
        self.chunk.start += 1
        self.num_output += 1
        if self.editor is not None:
            self.editor.note(token_id)
        if self.grammar is not None and not self.grammar.accept(token_id):
            error = Internal(f"token {token_id} was drawn against its grammar")
            return Emission(self.spec.key, (), (), FinishReason.ERROR, error)
        grammar_finished = self.grammar is not None and self.grammar.is_finished
        return Emission(
            self.spec.key,
            (token_id,),
            () if scores is None else (scores,),
            self.stop.finish_after(token_id, self.num_output, grammar_finished),
        )

    def completed_block(self) -> tuple[int, bytes] | None:
        """After a forward over this sequence's row: page and key of the block it completed."""
        key = self.chain.push(int(self.chunk.token_ids[0]))
        return None if key is None else (self.pages[self.chunk.start // BLOCK_TOKENS], key)
