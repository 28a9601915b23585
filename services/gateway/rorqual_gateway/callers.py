"""Who calls: from what a request presents as its key to a tenant, its scopes and its limits."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from rorqual_runtime.accounts.keys import NO_LIMITS, ApiKey, KeyLimits, Scope
from rorqual_runtime.errors import PermissionDenied, Unauthenticated

from rorqual_gateway.keys import KeyRing
from rorqual_gateway.stored_keys import StoredKeys

EVERYTHING = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class Caller:
    """One who may call. key_id: whose quotas count; "" where there are none."""

    tenant: str = "anonymous"
    key_id: str = ""
    scopes: frozenset[Scope] = EVERYTHING
    limits: KeyLimits = NO_LIMITS


ANYBODY = Caller()
"""Without any key set up, all callers are one tenant."""


class Callers:
    """Tells callers apart by their keys: those of settings, and those stored in Redis.

    stored: None = only those of settings count.
    """

    def __init__(self, ring: KeyRing, stored: StoredKeys | None) -> None:
        self._ring = ring
        self._stored = stored

    async def caller_of(self, headers: Mapping[str, str], scope: Scope) -> Caller:
        """Whose request this is; either header that clients send keys in is enough.

        Raises: Unauthenticated, PermissionDenied (the key lacks `scope`), Unavailable (the key
        can't be looked up now).
        """
        if not self._ring and self._stored is None:
            return ANYBODY
        presented = _presented(headers)
        if not presented:
            raise Unauthenticated(
                "an API key is required: send `Authorization: Bearer <key>` or `x-api-key: <key>`"
            )
        caller = await self._known(presented)
        if caller is None:
            raise Unauthenticated("the API key is not known here")
        if scope not in caller.scopes:
            raise PermissionDenied(f"this API key does not have the scope {scope.value!r}")
        return caller

    async def _known(self, presented: list[str]) -> Caller | None:
        for secret in presented:
            tenant = self._ring.tenant_of(secret)
            if tenant is not None:
                return Caller(tenant)
        if self._stored is None:
            return None
        found = await asyncio.gather(*map(self._stored.find, presented))
        return next((_caller(key) for key in found if key is not None), None)


def _caller(key: ApiKey) -> Caller:
    return Caller(key.tenant, key.id, key.scopes, key.limits)


def _presented(headers: Mapping[str, str]) -> list[str]:
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    keys = (
        bearer.strip() if scheme.lower() == "bearer" else "",
        headers.get("x-api-key", "").strip(),
    )
    return list(dict.fromkeys(key for key in keys if key))
