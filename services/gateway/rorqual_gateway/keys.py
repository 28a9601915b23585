"""API keys: who calls."""

import hashlib
import hmac
from collections.abc import Mapping

from rorqual_runtime.errors import Unauthenticated

ANONYMOUS = "anonymous"


def parse_api_keys(text: str) -> dict[str, str]:
    """Key -> tenant from `key,name:key,...`; a key without name is named by its digest.

    Raises: ValueError without quoting any key.
    """
    keys: dict[str, str] = {}
    for position, entry in enumerate(part.strip() for part in text.split(",") if part.strip()):
        name, separator, key = entry.rpartition(":")
        if not key or (separator and not name):
            raise ValueError(f"entry {position + 1} of the API keys is not `key` or `name:key`")
        keys[key] = name or f"key-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return keys


class KeyRing:
    """Maps a request's Authorization header to its tenant."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = [(key.encode(), tenant) for key, tenant in keys.items()]

    def tenant_of(self, authorization: str) -> str:
        """Tenant name; all callers are one tenant when no keys are set.

        Takes the same time for every wrong key. Raises: Unauthenticated.
        """
        if not self._keys:
            return ANONYMOUS
        scheme, _, presented = authorization.partition(" ")
        if scheme.lower() != "bearer" or not presented.strip():
            raise Unauthenticated("an API key is required: send `Authorization: Bearer <key>`")
        tenant = None
        for key, name in self._keys:
            if hmac.compare_digest(key, presented.strip().encode()):
                tenant = name
        if tenant is None:
            raise Unauthenticated("the API key is not known here")
        return tenant
