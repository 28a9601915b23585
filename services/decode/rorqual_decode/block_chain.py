"""Which block a growing sequence has just completed, and its key."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rorqual_policy.blocks import BLOCK_TOKENS, ImageSpan, extend_keys


class BlockChain:
    """Chain keys of one sequence's blocks as tokens get their KV, in order of position."""

    def __init__(
        self, parent: bytes, rest: Sequence[int], images: Sequence[ImageSpan] = ()
    ) -> None:
        """parent: key of the last full block so far, or the root key; rest: the tokens after it.

        images: those with tokens in the rest, positions counted from its first.
        """
        if len(rest) >= BLOCK_TOKENS:
            raise ValueError(f"the rest must be shorter than a block, got {len(rest)} tokens")
        self._parent = parent
        self._open = array("i", rest)
        self._images = images

    @property
    def last_key(self) -> bytes:
        """Of the last full block so far, or the root key."""
        return self._parent

    def push(self, token_id: int) -> bytes | None:
        """The next token's KV is written; the key of the block that this completes, if any."""
        self._open.append(token_id)
        if len(self._open) < BLOCK_TOKENS:
            return None
        (self._parent,) = extend_keys(self._parent, self._open, self._images)
        self._images = ()
        del self._open[:]
        return self._parent
