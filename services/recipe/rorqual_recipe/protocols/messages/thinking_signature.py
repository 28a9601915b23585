"""Signatures of thinking blocks: whoever holds the key can tell that a text is unchanged.

A signature proves nothing that could be misused: a client may put any text into its history. It
tells the client's author that thinking was cut or mixed up on the way.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence

_VERSION = "rq1."
_PURPOSE = b"thinking block\0"


class ThinkingSignature:
    """The signature of a text that is still being made."""

    def __init__(self, key: bytes) -> None:
        self._state = hmac.new(key, _PURPOSE, hashlib.sha256)

    def update(self, text: str) -> None:
        """More of the text; how it is cut makes no difference."""
        self._state.update(text.encode("utf-8", "surrogatepass"))

    def text(self) -> str:
        """The signature of everything so far."""
        return _VERSION + base64.urlsafe_b64encode(self._state.digest()).decode()


def signing_key_of(sealing_keys: Sequence[bytes], model_fingerprint: str) -> bytes:
    """The key that all instances of a fleet derive: from the first secret, else from the model."""
    secret = sealing_keys[0] if sealing_keys else model_fingerprint.encode()
    return hmac.digest(secret, _PURPOSE, hashlib.sha256)


class ThinkingSigner:
    """Signs with one key. Instances that share the key accept each other's signatures."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def begin(self) -> ThinkingSignature:
        """A signature of nothing yet."""
        return ThinkingSignature(self._key)

    def has_signed(self, text: str, signature: str) -> bool:
        """True when this is the signature of exactly this text."""
        expected = self.begin()
        expected.update(text)
        return hmac.compare_digest(expected.text().encode(), signature.encode())
