"""Each identity may use its own keys of Redis, and only to do what it does there: real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError
from rorqual_runtime.accounts.keys import ApiKey, KeyLimits, KeyStore, Scope
from rorqual_runtime.accounts.quotas import Quotas
from rorqual_runtime.errors import Unsupported
from rorqual_runtime.identities.files import REDIS_PASSWORD, sign_in_url
from rorqual_runtime.identities.issue import REDIS_USERS, issue
from rorqual_runtime.identities.redis_rights import REDIS_RIGHTS

from tests.support import servers

IDENTITIES = sorted(REDIS_RIGHTS)
READS = {"kvmeta": "GET", "recipe": "GET", "gateway": "HGET", "cli": "HGETALL"}
NOBODYS = (
    *(("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("MONITOR",)),
    *(("REPLICAOF", "NO", "ONE"), ("SHUTDOWN", "NOSAVE"), ("PUBLISH", "any", "text")),
    *(("CLIENT", "LIST"), ("SAVE",), ("MODULE", "LIST"), ("MIGRATE", "h", "1", "k", "0", "1")),
)


@pytest_asyncio.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[servers.RedisServer]:
    """Redis that asks who is there; the identities' files are in tmp_path/secrets."""
    issue(tmp_path / "secrets")
    users = str(tmp_path / "secrets" / REDIS_USERS)
    async with servers.redis_server(tmp_path, extra_args=["--aclfile", users]) as server:
        yield server


def signed_in(server: servers.RedisServer, home: Path, identity: str) -> Redis:
    return Redis.from_url(sign_in_url(server.url, identity, home / "secrets" / identity))


def read(identity: str, pattern: str) -> tuple[str, ...]:
    """What this identity would send to read a key that the pattern stands for."""
    key, command = pattern.replace("*", "any"), READS[identity]
    return (command, key, "field") if command == "HGET" else (command, key)


@pytest.mark.parametrize("identity", IDENTITIES)
async def test_an_identity_reads_its_own_keys_and_nothing_else(
    identity: str, guarded: servers.RedisServer, tmp_path: Path
) -> None:
    own = REDIS_RIGHTS[identity].keys
    foreign = {key for rights in REDIS_RIGHTS.values() for key in rights.keys} - set(own)
    async with signed_in(guarded, tmp_path, identity) as client:
        assert await client.ping()
        for pattern in own:
            assert await client.execute_command(*read(identity, pattern)) in (None, {})
        for pattern in (*foreign, "other", "rorqual:*"):
            assert not any(fnmatchcase(pattern.replace("*", "any"), one) for one in own)
            with pytest.raises(NoPermissionError):
                await client.execute_command(*read(identity, pattern))
        for command in NOBODYS:
            with pytest.raises(NoPermissionError):
                await client.execute_command(*command)


async def test_keys_are_made_by_the_command_line_and_used_by_gateways(
    guarded: servers.RedisServer, tmp_path: Path
) -> None:
    limits = KeyLimits(requests_per_minute=2, tokens_per_minute=100, max_concurrent=2)
    key = ApiKey(
        id="a", name="a", tenant="a", scopes={Scope.INFERENCE}, limits=limits, created_unix_s=1.0
    )
    async with (
        signed_in(guarded, tmp_path, "cli") as cli,
        signed_in(guarded, tmp_path, "gateway") as gateway,
    ):
        await KeyStore(cli).add(key, "secret")
        assert await KeyStore(gateway).find("secret") == key
        quotas = Quotas(gateway)
        assert (await quotas.take("a", limits, "r", lease_s=10.0)).refused_by == ""
        await quotas.settle("a", limits, "r", num_tokens=5)
        with pytest.raises(NoPermissionError):
            await KeyStore(gateway).all()
        assert await KeyStore(cli).revoke("a") == 1


async def test_nobody_gets_in_without_a_password_that_was_issued(
    guarded: servers.RedisServer, tmp_path: Path
) -> None:
    (tmp_path / REDIS_PASSWORD).write_text("guessed")
    async with Redis.from_url(guarded.url) as nobody:
        with pytest.raises(AuthenticationError):
            await nobody.ping()
    for identity in ("kvmeta", "default"):
        async with Redis.from_url(sign_in_url(guarded.url, identity, tmp_path)) as guesser:
            with pytest.raises(AuthenticationError):
                await guesser.ping()


def test_a_url_gets_the_login_unless_it_has_one(tmp_path: Path) -> None:
    (tmp_path / REDIS_PASSWORD).write_text("p/w\n")
    cluster = "redis+cluster://a:1,b:2"
    assert sign_in_url(cluster, "kvmeta", tmp_path) == "redis+cluster://kvmeta:p%2Fw@a:1,b:2"
    assert sign_in_url("redis://u:p@h/0", "kvmeta", tmp_path) == "redis://u:p@h/0"
    assert sign_in_url("redis://h/0", "kvmeta", None) == "redis://h/0"
    with pytest.raises(Unsupported, match=r"RORQUAL_SECRETS_DIR: .*redis\.password"):
        sign_in_url("redis://h/0", "kvmeta", tmp_path / "none")
