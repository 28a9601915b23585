"""NATS user keys: Ed25519 pairs in the text form that nats-server and the `nk` tool read."""

from __future__ import annotations

import base64
import binascii

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_SEED_PREFIX = 18 << 3  # S
_USER_PREFIX = 20 << 3  # U
_NUM_KEY_BYTES = 32


class UserKey:
    """One key pair. Its seed never shows in `repr` or logs."""

    def __init__(self, seed: str) -> None:
        """seed: as `seed` gives it. Raises: ValueError when it is none of a user."""
        self._key = Ed25519PrivateKey.from_private_bytes(_raw_seed(seed))

    @classmethod
    def generate(cls) -> UserKey:
        return cls(_encode(_seed_head(), Ed25519PrivateKey.generate().private_bytes_raw()))

    @property
    def seed(self) -> str:
        """The secret, as it lies in a file: SU..."""
        return _encode(_seed_head(), self._key.private_bytes_raw())

    @property
    def public(self) -> str:
        """What the server knows: U..."""
        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return _encode(bytes([_USER_PREFIX]), raw)

    def sign(self, nonce: str) -> bytes:
        """The server's nonce, signed, in base64."""
        return base64.b64encode(self._key.sign(nonce.encode()))


def _seed_head() -> bytes:
    return bytes([_SEED_PREFIX | _USER_PREFIX >> 5, (_USER_PREFIX & 31) << 3])


def _encode(head: bytes, raw: bytes) -> str:
    body = head + raw
    checksum = binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(body + checksum).decode().rstrip("=")


def _raw_seed(seed: str) -> bytes:
    text = seed.strip()
    try:
        body = base64.b32decode(text + "=" * (-len(text) % 8))
    except binascii.Error:
        body = b""
    head, raw, checksum = body[:2], body[2:-2], body[-2:]
    is_whole = binascii.crc_hqx(body[:-2], 0).to_bytes(2, "little") == checksum
    if head != _seed_head() or len(raw) != _NUM_KEY_BYTES or not is_whole:
        raise ValueError("not the seed of a NATS user key")
    return raw
