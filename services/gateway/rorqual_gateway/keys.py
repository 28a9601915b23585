"""API keys that settings name: known from the start, and kept nowhere else."""

import hashlib
import hmac
from collections.abc import Mapping


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
    """Maps a key to its tenant."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = [(key.encode(), tenant) for key, tenant in keys.items()]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def tenant_of(self, presented: str) -> str | None:
        """The tenant's name, None for an unknown key; takes the same time for every wrong one."""
        tenant = None
        for key, name in self._keys:
            if hmac.compare_digest(key, presented.encode()):
                tenant = name
        return tenant
