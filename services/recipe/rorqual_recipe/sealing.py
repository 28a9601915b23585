"""Reasoning that clients carry but can't read: sealed when it leaves, opened when it comes back.

AES-256-GCM. The nonce is a keyed digest of everything that is sealed, so the same reasoning of
the same answer is always the same text (another instance may write the end of a stream), and two
different texts never share a nonce. Tenant and model are authenticated with it: a seal opens for
the tenant and the model it was made for, and for nobody else.
"""

import base64
import binascii
import hashlib
import hmac
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MIN_KEY_CHARS = 32
MAX_SEALED_CHARS = 16 << 20
MAX_REASONING_BYTES = 64 << 20
_HEAD = "rq1."
_KEY_ID_BYTES = 4
_NONCE_BYTES = 12
_ISSUED = struct.Struct("<Q")
_CLOCK_SKEW_S = 300


class WeakSealingKey(ValueError):
    """A configured key that is too short; its text is not repeated."""


def parse_sealing_keys(text: str) -> list[bytes]:
    """Keys separated by commas: the first seals, all of them open. Raises: WeakSealingKey."""
    keys = [key.strip() for key in text.split(",") if key.strip()]
    if any(len(key) < MIN_KEY_CHARS for key in keys):
        raise WeakSealingKey(f"a sealing key has at least {MIN_KEY_CHARS} characters")
    return [key.encode() for key in keys]


class SealBroken(Exception):
    """A seal that does not open; the message completes `field: ...`."""


@dataclass(frozen=True, slots=True)
class SealBinding:
    """Whose seal it is."""

    tenant: str
    model: str

    def authenticated(self) -> bytes:
        return json.dumps([_HEAD, self.tenant, self.model]).encode()


NO_BINDING = SealBinding("", "")


@dataclass(frozen=True, slots=True)
class _Key:
    key_id: bytes
    cipher: AESGCM
    nonce_key: bytes


def _make_key(secret: bytes) -> _Key:
    """Three independent values of one secret."""
    encryption, nonce_key, key_id = (
        hmac.digest(secret, purpose, hashlib.sha256)
        for purpose in (b"rorqual reasoning key", b"rorqual reasoning nonce", b"rorqual key id")
    )
    return _Key(key_id[:_KEY_ID_BYTES], AESGCM(encryption), nonce_key)


class Sealer:
    """Seals with the first secret, opens what any of them has sealed."""

    def __init__(self, secrets: Sequence[bytes], *, ttl_s: float) -> None:
        self._keys = [_make_key(secret) for secret in secrets]
        self._by_id = {key.key_id: key for key in self._keys}
        self._ttl_s = ttl_s

    def seal(self, text: str, binding: SealBinding, issued_unix_s: int) -> str:
        """The text, sealed. The same arguments give the same seal."""
        key = self._keys[0]
        plain = _ISSUED.pack(issued_unix_s) + zlib.compress(text.encode("utf-8", "surrogatepass"))
        bound = binding.authenticated()
        digest = hmac.new(key.nonce_key, struct.pack("<Q", len(bound)) + bound, hashlib.sha256)
        digest.update(plain)
        nonce = digest.digest()[:_NONCE_BYTES]
        sealed = key.key_id + nonce + key.cipher.encrypt(nonce, plain, bound)
        return _HEAD + base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def open(self, sealed: str, binding: SealBinding, now_unix_s: float) -> str:
        """The sealed text. Raises: SealBroken."""
        raw = _raw(sealed)
        key = self._by_id.get(raw[:_KEY_ID_BYTES])
        if key is None:
            raise SealBroken("was sealed with a key that is not in use here (any more)")
        nonce, box = raw[_KEY_ID_BYTES:][:_NONCE_BYTES], raw[_KEY_ID_BYTES + _NONCE_BYTES :]
        try:
            plain = key.cipher.decrypt(nonce, box, binding.authenticated())
        except (InvalidTag, ValueError) as err:
            raise SealBroken(
                "does not open: it is damaged, or was made for another account or model"
            ) from err
        (issued_unix_s,) = _ISSUED.unpack_from(plain)
        if not -_CLOCK_SKEW_S <= now_unix_s - issued_unix_s <= self._ttl_s:
            raise SealBroken("has expired; leave this item out")
        return _inflate(plain[_ISSUED.size :])


def is_ours(sealed: str) -> bool:
    """True for a text that claims to be one of our seals."""
    return sealed.startswith(_HEAD)


def _raw(sealed: str) -> bytes:
    if not is_ours(sealed):
        raise SealBroken("was not made by this service")
    if len(sealed) > MAX_SEALED_CHARS:
        raise SealBroken(f"at most {MAX_SEALED_CHARS} characters")
    text = sealed[len(_HEAD) :]
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as err:
        raise SealBroken("is damaged") from err
    if len(raw) < _KEY_ID_BYTES + _NONCE_BYTES + _ISSUED.size:
        raise SealBroken("is damaged")
    return raw


def _inflate(packed: bytes) -> str:
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(packed, MAX_REASONING_BYTES)
    if unpacker.unconsumed_tail:
        raise SealBroken(f"holds more than {MAX_REASONING_BYTES} bytes")
    return text.decode("utf-8", "surrogatepass")
