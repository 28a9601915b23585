"""Walks a compiled grammar as decode will, where a runaway walk can still be killed.

Some grammars compile at once and then take minutes for one token: nested repetitions whose parses
multiply. Decode can't interrupt such a step, and every other answer would wait behind it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xgrammar

NUM_TOKENS = 48
"""Tokens a walk; parses that multiply have done so by then."""


def try_out(compiled: xgrammar.CompiledGrammar, tokenizer: xgrammar.TokenizerInfo) -> None:
    """Takes three short walks and returns; where it does not, the caller's wall clock judges."""
    draw = np.random.default_rng(0)
    _walk(compiled, tokenizer, lambda num_allowed: 0)  # the first tokens are single bytes
    _walk(compiled, tokenizer, lambda num_allowed: num_allowed - 1)
    _walk(compiled, tokenizer, lambda num_allowed: int(draw.integers(num_allowed)))


def _walk(
    compiled: xgrammar.CompiledGrammar,
    tokenizer: xgrammar.TokenizerInfo,
    choose: Callable[[int], int],
) -> None:
    """choose: from the number of allowed tokens, which of them comes next."""
    matcher = xgrammar.GrammarMatcher(compiled)
    mask = np.empty((1, -(-tokenizer.vocab_size // 32)), np.int32)
    for _ in range(NUM_TOKENS):
        mask.fill(-1)
        matcher.fill_next_token_bitmask(mask, 0)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: tokenizer.vocab_size]
        bits[tokenizer.stop_token_ids] = 0
        allowed = np.flatnonzero(bits)
        if not len(allowed) or not matcher.accept_token(int(allowed[choose(len(allowed))])):
            return
