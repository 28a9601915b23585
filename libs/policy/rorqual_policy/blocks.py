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
_TOKENS_HEAD = _field_head(b"T", _BLOCK_BYTES)
_BLOCK_HEAD = blake2b(_VERSION_FIELD + _field_head(b"P", KEY_BYTES), digest_size=KEY_BYTES)
"""Every block's hash begins like this: it is copied, never fed."""


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


def root_key(*, fingerprint: str, namespace: str | None, adapter: str = "") -> bytes:
    """Parent of every first block under one model fingerprint, adapter and cache namespace.

    namespace: None is no namespace, which differs from every one, the empty one too; adapter: what
    changes the model on top of its fingerprint, empty for nothing.
    """
    encoded = _VERSION_FIELD + _field(b"F", fingerprint.encode("utf-8"))
    if namespace is not None:
        encoded += _field(b"N", namespace.encode("utf-8"))
    if adapter:
        encoded += _field(b"A", adapter.encode("utf-8"))
    return blake2b(encoded, digest_size=KEY_BYTES).digest()


def content_key(
    token_ids: Sequence[int],
    *,
    fingerprint: str,
    adapter: str = "",
    images: Sequence[ImageSpan] = (),
) -> bytes:
    """Key of the first full block in no namespace: equal where tenants begin alike.

    Empty when there is no full block. No stored block goes by it.
    """
    root = root_key(fingerprint=fingerprint, namespace=None, adapter=adapter)
    return b"".join(extend_keys(root, token_ids[:BLOCK_TOKENS], images))


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
        digest = _BLOCK_HEAD.copy()
        digest.update(parent + _TOKENS_HEAD)
        digest.update(tokens[start : start + _BLOCK_BYTES])
        if images:
            digest.update(b"".join(_image_fields(images, start // _TOKEN_BYTES)))
        parent = digest.digest()
        keys.append(parent)
    return keys


def _image_fields(images: Sequence[ImageSpan], start: int) -> Iterator[bytes]:
    """What of each image stands in the block that begins at `start`."""
    end = start + BLOCK_TOKENS
    for image in images:
        first, last = max(start, image.start), min(end, image.end)
        if first < last:
            place = (first - start, first - image.start, last - first, image.num_tokens)
            numbers = b"".join(number.to_bytes(4, "little") for number in place)
            yield _field(b"I", numbers + image.digest)


def block_keys(
    token_ids: Sequence[int],
    *,
    fingerprint: str,
    namespace: str,
    adapter: str = "",
    images: Sequence[ImageSpan] = (),
) -> list[bytes]:
    """16-byte keys of the full 128-token blocks of a prompt, in order.

    Two prompts share their first n keys exactly when they share fingerprint, namespace, adapter,
    their first n * BLOCK_TOKENS token ids and the images among them. token_ids as for
    `extend_keys`.
    """
    root = root_key(fingerprint=fingerprint, namespace=namespace, adapter=adapter)
    return extend_keys(root, token_ids, images)


def block_lifetime_s(
    *, is_chat: bool, chat_s: float = CHAT_LIFETIME_S, agent_s: float = AGENT_LIFETIME_S
) -> float:
    """How long a stored block lives: people come back to a chat later than agents to a task."""
    return chat_s if is_chat else agent_s


def _int32_le_bytes(token_ids: Sequence[int]) -> memoryview:
    """Token ids as little-endian int32: the caller's own memory where it holds them like that."""
    try:
        view = memoryview(token_ids)  # type: ignore[arg-type]
    except TypeError:
        view = None
    if view is None or view.format not in ("i", "<i", "=i") or view.itemsize != _TOKEN_BYTES:
        view = memoryview(array("i", token_ids))
    if view.itemsize != _TOKEN_BYTES:
        raise OverflowError(f"this platform's int has {view.itemsize} bytes, need {_TOKEN_BYTES}")
    if sys.byteorder == "big":
        swapped = array("i", view.tobytes())
        if view.format != "<i":
            swapped.byteswap()
        return memoryview(swapped).cast("B")
    if view.format != "i" or not view.c_contiguous or view.ndim != 1:
        view = memoryview(view.tobytes())
    return view.cast("B")
