"""Bytes of every token, so that text can be put together from tokens in any portions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rorqual_recipe.model_files import AddedToken

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedDecoder(Exception):
    """The tokenizer's decoder is of a kind that can't be turned into bytes per token."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """token_bytes[id] is what the token adds to the text; special tokens add nothing.

    special: spelling of each special token, for where a token itself is shown.
    added: id of every entry of the added vocabulary, special or not, by spelling.
    tables: what readers of answers work out once per vocabulary.
    """

    token_bytes: tuple[bytes, ...]
    special: Mapping[int, bytes]
    strips_first_space: bool
    added: Mapping[str, int] = field(default_factory=dict)
    tables: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def bytes_of(self, token_id: int) -> bytes:
        """What a token adds to the text; nothing for ids outside the vocabulary."""
        return self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""

    def spelling_of(self, token_id: int) -> bytes:
        """The token itself, special ones included."""
        return self.special.get(token_id) or self.bytes_of(token_id)


def make_vocabulary(tokenizer: Mapping[str, Any], added: Sequence[AddedToken]) -> Vocabulary:
    """The byte table of a tokenizer.json. Raises: UnsupportedDecoder."""
    vocab: Mapping[str, int] = tokenizer["model"]["vocab"]
    kinds = _decoder_kinds(tokenizer.get("decoder"))
    byte_level = "ByteLevel" in kinds
    if not byte_level and not {"ByteFallback", "Metaspace"} & kinds:
        raise UnsupportedDecoder(f"decoder of kinds {sorted(kinds)}")
    to_bytes = byte_level_bytes if byte_level else _sentencepiece_bytes
    size = 1 + max([*vocab.values(), *(token.token_id for token in added)])
    table = [b""] * size
    for token, token_id in vocab.items():
        table[token_id] = to_bytes(token)
    for entry in added:
        table[entry.token_id] = b"" if entry.special else entry.content.encode()
    return Vocabulary(
        token_bytes=tuple(table),
        special={entry.token_id: entry.content.encode() for entry in added if entry.special},
        strips_first_space=not byte_level,
        added={entry.content: entry.token_id for entry in added},
    )


def _decoder_kinds(decoder: Mapping[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    parts = decoder.get("decoders", [decoder])
    return {str(part["type"]) for part in parts}


@cache
def _byte_of_char() -> dict[str, int]:
    """Inverse of the byte-level alphabet: printable bytes stand for themselves, others from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in table)
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


def byte_level_bytes(token: str) -> bytes:
    """The bytes a byte-level token stands for; a token outside that alphabet spells itself."""
    table = _byte_of_char()
    try:
        return bytes([table[char] for char in token])
    except KeyError:
        return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    if match:
        return bytes([int(match.group(1), 16)])
    return token.replace("\u2581", " ").encode()
