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
    """Maps what a request presents as its key to its tenant."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = [(key.encode(), tenant) for key, tenant in keys.items()]

    def tenant_of(self, authorization: str, api_key: str = "") -> str:
        """Tenant name; all callers are one tenant when no keys are set.

        authorization: `Bearer <key>`; api_key: the `x-api-key` header. Either one is enough.
        Takes the same time for every wrong key. Raises: Unauthenticated.
        """
        if not self._keys:
            return ANONYMOUS
        presented = [key for key in (_bearer_key(authorization), api_key.strip()) if key]
        if not presented:
            raise Unauthenticated(
                "an API key is required: send `Authorization: Bearer <key>` or `x-api-key: <key>`"
            )
        tenants = [self._tenant_of_key(key) for key in presented]
        tenant = next((name for name in tenants if name is not None), None)
        if tenant is None:
            raise Unauthenticated("the API key is not known here")
        return tenant

    def _tenant_of_key(self, presented: str) -> str | None:
        tenant = None
        for key, name in self._keys:
            if hmac.compare_digest(key, presented.encode()):
                tenant = name
        return tenant


def _bearer_key(authorization: str) -> str:
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
