"""Keys of prefix blocks: a hash chain; one key stands for a block and all that precede it."""

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

BLOCK_TOKENS = 128
KEY_BYTES = 16
CHAT_LIFETIME_S = 7 * 86_400.0
AGENT_LIFETIME_S = 3 * 86_400.0

_LAYOUT_VERSION = b"\x01"
_TOKEN_BYTES = 4
_BLOCK_BYTES = BLOCK_TOKENS * _TOKEN_BYTES


def _field(tag: bytes, value: bytes) -> bytes:
    """One tagged, length-prefixed field: no two lists of fields share an encoding."""
    return tag + len(value).to_bytes(4, "little") + value


def _field_head(tag: bytes, num_bytes: int) -> bytes:
    return tag + num_bytes.to_bytes(4, "little")


_VERSION_FIELD = _field(b"V", _LAYOUT_VERSION)
_PARENT_HEAD = _VERSION_FIELD + _field_head(b"P", KEY_BYTES)
_TOKENS_HEAD = _field_head(b"T", _BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image among tokens, whose ids all are the same: its digest tells it from others."""

    start: int
    """Position of its first token; below 0 where it begins before the tokens at hand."""
    num_tokens: int
    digest: bytes
    """Of its whole content."""

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    def seen_from(self, position: int) -> "ImageSpan":
        """The same image, with positions counted from `position`."""
        return ImageSpan(self.start - position, self.num_tokens, self.digest)


def root_key(*, fingerprint: str, namespace: str) -> bytes:
    """Parent of every first block under one model fingerprint and one cache namespace."""
    encoded = (
        _VERSION_FIELD
        + _field(b"F", fingerprint.encode("utf-8"))
        + _field(b"N", namespace.encode("utf-8"))
    )
    return blake2b(encoded, digest_size=KEY_BYTES).digest()


def extend_keys(
    parent: bytes, token_ids: Sequence[int], images: Sequence[ImageSpan] = ()
) -> list[bytes]:
    """Keys of the full blocks in token_ids, which follow the block that `parent` stands for.

    images: those that have tokens here, in order; a block without any is keyed as ever.

    token_ids start on a block boundary; a rest shorter than BLOCK_TOKENS gets no key, so the caller
    passes it again once it has grown. The parent of the very first block is `root_key(...)`.
    Fast with a buffer of int32 (array("i"), numpy int32); any other sequence of ints is converted.

    Raises: ValueError for a parent of the wrong size; OverflowError for an id outside int32.
    """
    if len(parent) != KEY_BYTES:
        raise ValueError(f"a parent key has {KEY_BYTES} bytes, got {len(parent)}")
    tokens = _int32_le_bytes(token_ids)
    keys: list[bytes] = []
    for start in range(0, len(tokens) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        block = tokens[start : start + _BLOCK_BYTES]
        encoded = _PARENT_HEAD + parent + _TOKENS_HEAD + block
        if images:
            encoded += b"".join(_image_fields(images, start // _TOKEN_BYTES))
        parent = blake2b(encoded, digest_size=KEY_BYTES).digest()
        keys.append(parent)
    return keys


def _image_fields(images: Sequence[ImageSpan], start: int) -> Iterator[bytes]:
    """What of each image stands in the block that begins at `start`."""
    end = start + BLOCK_TOKENS
    for image in images:
        first, last = max(start, image.start), min(end, image.end)
        if first < last:
            place = (first - start, first - image.start, last - first)
            numbers = b"".join(number.to_bytes(4, "little") for number in place)
            yield _field(b"I", numbers + image.digest)


def block_keys(
    token_ids: Sequence[int],
    *,
    fingerprint: str,
    namespace: str,
    images: Sequence[ImageSpan] = (),
) -> list[bytes]:
    """16-byte keys of the full 128-token blocks of a prompt, in order.

    Two prompts share their first n keys exactly when they share fingerprint, namespace, their
    first n * BLOCK_TOKENS token ids and the images among them. token_ids as for `extend_keys`.
    """
    return extend_keys(root_key(fingerprint=fingerprint, namespace=namespace), token_ids, images)


def block_lifetime_s(
    *, is_chat: bool, chat_s: float = CHAT_LIFETIME_S, agent_s: float = AGENT_LIFETIME_S
) -> float:
    """How long a stored block lives: people come back to a chat later than agents to a task."""
    return chat_s if is_chat else agent_s


def _int32_le_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32, without touching single ids when they are int32 already."""
    try:
        view = memoryview(token_ids)  # type: ignore[arg-type]
    except TypeError:
        view = None
    if view is not None and view.format in ("i", "<i", "=i") and view.itemsize == _TOKEN_BYTES:
        native = array("i")
        native.frombytes(view.tobytes())
    else:
        native = array("i", token_ids)
    if native.itemsize != _TOKEN_BYTES:
        raise OverflowError(f"this platform's int has {native.itemsize} bytes, need {_TOKEN_BYTES}")
    if sys.byteorder == "big":
        native.byteswap()
    return native.tobytes()
