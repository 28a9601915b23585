"""Pure decisions of Rorqual: standard library only."""

from rorqual_policy.blocks import BLOCK_TOKENS, KEY_BYTES, block_keys, extend_keys, root_key

__all__ = ["BLOCK_TOKENS", "KEY_BYTES", "block_keys", "extend_keys", "root_key"]
