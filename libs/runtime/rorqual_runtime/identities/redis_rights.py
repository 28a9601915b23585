"""Which keys and commands of Redis each identity may use: one table, from which its users are
written. Everybody else, the default user too, is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

_CONNECTION = (
    *("ping", "hello", "select"),
    *("cluster|slots", "cluster|shards", "cluster|nodes", "command", "readonly"),
)
"""To connect, to one server or to a Cluster. Not `client|setinfo`: Redis 7.0 does not start with a
list that names it, and clients do without."""


@dataclass(frozen=True, slots=True)
class RedisRights:
    """keys: patterns of names. commands: beyond those to connect; those inside scripts as well."""

    keys: tuple[str, ...]
    commands: tuple[str, ...]


REDIS_RIGHTS: dict[str, RedisRights] = {
    "kvmeta": RedisRights(
        ("rorqual:v2:*",),
        (
            *("get", "set", "mget", "del", "eval", "scan", "info", "ttl", "expire", "pexpire"),
            *("hget", "hset", "hdel", "hgetall"),
            *("zadd", "zrem", "zremrangebyscore", "zcard", "zrangebyscore"),
        ),
    ),
    "recipe": RedisRights(("rorqual:v1:recipe:*",), ("get", "set", "del")),
    "gateway": RedisRights(
        ("rorqual:v1:{api_keys}:*", "rorqual:v1:{quota:*", "rorqual:v1:gateway:answer:*"),
        (
            *("get", "set", "del"),
            *("hget", "evalsha", "script|load", "time", "hmget", "hset", "expire"),
            *("zadd", "zrem", "zremrangebyscore", "zcard"),
        ),
    ),
    "cli": RedisRights(("rorqual:v1:{api_keys}:*",), ("hset", "hdel", "hgetall")),
}
"""By identity. `cli` makes, lists and revokes API keys (`rorqual keys`)."""


def access_list(passwords: Mapping[str, str]) -> str:
    """Users as a file of `redis-server --aclfile`; of passwords, it holds digests only.

    passwords: by identity.
    """
    lines = ["user default off resetkeys resetchannels -@all"]
    for identity, password in sorted(passwords.items()):
        rights = REDIS_RIGHTS[identity]
        digest = hashlib.sha256(password.encode()).hexdigest()
        keys = " ".join(f"~{pattern}" for pattern in rights.keys)
        commands = " ".join(f"+{command}" for command in (*_CONNECTION, *rights.commands))
        lines.append(f"user {identity} on #{digest} {keys} resetchannels -@all {commands}")
    return "\n".join(lines) + "\n"
