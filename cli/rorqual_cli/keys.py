"""`rorqual keys`: make, list and revoke the API keys that gateways look up in Redis."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError
from redis.exceptions import RedisError
from rorqual_runtime.accounts.keys import (
    ApiKey,
    KeyLimits,
    KeyStore,
    Scope,
    new_key_id,
    new_secret,
)
from rorqual_runtime.errors import Unsupported
from rorqual_runtime.identities.files import sign_in_url
from rorqual_runtime.redis_clients import close_client, open_client
from rorqual_runtime.settings import RuntimeSettings

from rorqual_cli.address import fleet_secrets
from rorqual_cli.problems import CliError
from rorqual_cli.state import running_state

IDENTITY = "cli"
TIMEOUT_S = 5.0
MAX_DAYS = 36_500.0
_DAY_S = 86_400.0
_COLUMNS = ("id", "name", "tenant", "scopes", "limits", "created", "expires")


def run_keys(options: argparse.Namespace) -> int:
    """Returns the exit code. Raises: CliError."""
    url = _redis_url(options.redis_url, options.home)
    try:
        return asyncio.run(_run(url, options))
    except (RedisError, OSError, TimeoutError) as error:
        raise CliError(f"Redis does not answer: {type(error).__name__}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CliError(f"{field}: {first['msg']}") from error
    except ValueError as error:
        raise CliError(f"--redis-url: {error}") from error


def _redis_url(named: str | None, home: Path) -> str:
    """The Redis that was named, with RORQUAL_SECRETS_DIR, or else the fleet's of this home.

    Raises: CliError.
    """
    url = named or running_state(home).redis_url
    secrets_dir = RuntimeSettings().secrets_dir if named else fleet_secrets(home) / IDENTITY
    try:
        return sign_in_url(url, IDENTITY, secrets_dir)
    except Unsupported as error:
        raise CliError(error.message) from error


async def _run(url: str, options: argparse.Namespace) -> int:
    client = open_client(url, timeout_s=TIMEOUT_S, max_connections=1)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _ACTIONS[options.action](KeyStore(client), options)
    finally:
        await close_client(client)


async def _create(store: KeyStore, options: argparse.Namespace) -> int:
    key_id, now_unix_s = new_key_id(), time.time()
    lives_s = None if options.expires_days is None else options.expires_days * _DAY_S
    if lives_s is not None and not 0 < lives_s <= MAX_DAYS * _DAY_S:
        raise CliError(f"--expires-days must be above 0 and at most {MAX_DAYS:g}")
    key = ApiKey(
        id=key_id,
        name=options.name,
        tenant=options.tenant or f"key-{key_id}",
        scopes=frozenset(map(Scope, options.scope or [Scope.INFERENCE])),
        limits=KeyLimits(
            requests_per_minute=options.requests_per_minute,
            tokens_per_minute=options.tokens_per_minute,
            max_concurrent=options.max_concurrent,
        ),
        created_unix_s=now_unix_s,
        expires_unix_s=None if lives_s is None else now_unix_s + lives_s,
    )
    secret = new_secret(key_id)
    await store.add(key, secret)
    if options.json:
        print(json.dumps({"key": secret, **key.model_dump(mode="json")}))
        return 0
    print(secret)
    print(
        "Shown this once: keep it now. Gateways ask for keys when RORQUAL_GATEWAY_STORED_KEYS=1.",
        file=sys.stderr,
    )
    return 0


async def _list(store: KeyStore, options: argparse.Namespace) -> int:
    keys = await store.all()
    if options.json:
        for key in keys:
            print(key.model_dump_json())
        return 0
    rows = [_COLUMNS, *map(_row, keys)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    return 0


async def _revoke(store: KeyStore, options: argparse.Namespace) -> int:
    if not await store.revoke(options.id):
        raise CliError(f"no key has the id {options.id!r}", "see `rorqual keys list`")
    print(f"{options.id} is revoked; gateways that know it forget it within seconds")
    return 0


def _row(key: ApiKey) -> tuple[str, ...]:
    limits = [f"{name}={value}" for name, value in key.limits.model_dump(exclude_none=True).items()]
    return (
        key.id,
        key.name,
        key.tenant,
        ",".join(sorted(key.scopes)),
        ",".join(limits) or "-",
        _day(key.created_unix_s),
        "-" if key.expires_unix_s is None else _day(key.expires_unix_s),
    )


def _day(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M")


_ACTIONS = {"create": _create, "list": _list, "revoke": _revoke}
