"""How a block's KV came to be, and whether such a block is stored."""

from enum import Enum, IntEnum


class Provenance(IntEnum):
    """What the KV of a block equals."""

    EXACT = 0
    """The KV of a computation of its whole prefix."""
    REPLAYED = 1
    """It stands behind a bounded replay of windows: close to that, not equal bit for bit."""


class BlockOrigin(Enum):
    """Who computed a block."""

    PROMPT = "prompt"
    """Prefill: any tokens that a client sent, so an exact run of them is possible later."""
    CONTINUATION = "continuation"
    """Decode: its own tokens, whose only computation it was."""


class StoredReplays(Enum):
    """Which blocks behind a replay are stored."""

    ALL = "all"
    CONTINUATION = "continuation"
    NONE = "none"


def stores_block(
    provenance: Provenance,
    origin: BlockOrigin,
    stored_replays: StoredReplays = StoredReplays.ALL,
) -> bool:
    """Whether a finished block goes to the store; an exact one always does.

    The default stores replays of both origins. Decode's own continuation is what a session comes
    back to; it is reachable only over the prompt's blocks before it, so without those a session
    that was resumed once, after its window had gone, would compute everything since then again in
    each turn. Whoever wants exact hits alone asks for exact blocks, or stores no replays.
    """
    if provenance is Provenance.EXACT or stored_replays is StoredReplays.ALL:
        return True
    return stored_replays is StoredReplays.CONTINUATION and origin is BlockOrigin.CONTINUATION


def provenance_after(
    *, num_exact_blocks: int, num_used_blocks: int, is_replayed: bool
) -> Provenance:
    """Of blocks that are computed behind a stored prefix.

    num_exact_blocks: leading blocks of the stored prefix known to be exact; num_used_blocks: how
    many of the prefix are used; is_replayed: windows were rebuilt from a part of it.
    """
    is_exact = not is_replayed and num_used_blocks <= num_exact_blocks
    return Provenance.EXACT if is_exact else Provenance.REPLAYED
