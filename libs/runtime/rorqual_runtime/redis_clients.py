"""Which Redis: one server, one that Sentinels name, or a Cluster; chosen by the URL.

redis://host:6379/0                       one server (rediss:// with TLS)
redis+sentinel://host:26379,host2/name/0  the master that Sentinels know under this name
redis+cluster://host:6379,host2:6379      a Cluster, found from any of its nodes
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

RedisClient: TypeAlias = "Redis | RedisCluster"

SENTINEL_PORT, CLUSTER_PORT = 26379, 6379
_HOST = re.compile(r"(?:(?P<name>[^\[\]:@,/]+)|\[(?P<address>[0-9A-Fa-f:.]+)\])(?::(?P<port>\d+))?")


class _Parts(NamedTuple):
    """Of a URL with several hosts."""

    hosts: tuple[tuple[str, int], ...]
    username: str | None
    password: str | None
    path: str


def open_client(url: str, *, timeout_s: float, max_connections: int) -> RedisClient:
    """A client that connects when it is used. Raises: ValueError for a URL of no known form."""
    scheme, _, rest = url.partition("://")
    if scheme == "redis+sentinel":
        return _by_sentinel(_read(rest, SENTINEL_PORT), timeout_s, max_connections)
    if scheme == "redis+cluster":
        return _cluster(_read(rest, CLUSTER_PORT), timeout_s, max_connections)
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis(connection_pool=pool)


async def drop_idle(client: RedisClient) -> None:
    """Close the connections that nobody uses: after one failed they are as dead."""
    if isinstance(client, RedisCluster):
        await client.aclose()  # looks for the nodes again at the next call
    else:
        await client.connection_pool.disconnect(inuse_connections=False)


async def close_client(client: RedisClient) -> None:
    if isinstance(client, RedisCluster):
        await client.aclose()
        return
    pool = client.connection_pool
    await pool.disconnect()
    if isinstance(pool, SentinelConnectionPool):
        for sentinel in pool.sentinel_manager.sentinels:
            await sentinel.aclose()


def _by_sentinel(parts: _Parts, timeout_s: float, max_connections: int) -> Redis:
    service, _, database = parts.path.partition("/")
    if not service:
        raise ValueError("a redis+sentinel URL names its master: redis+sentinel://host:26379/name")
    if database and not database.isdecimal():
        raise ValueError(f"{database!r} is no database: it has a number")
    login = {"username": parts.username, "password": parts.password}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        list(parts.hosts),
        sentinel_kwargs={"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s},
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )
    pool = SentinelConnectionPool(  # type: ignore[no-untyped-call]
        service,
        sentinel,
        db=int(database or 0),
        max_connections=max_connections,
        **{**sentinel.connection_kwargs, **{k: v for k, v in login.items() if v}},
    )
    return Redis(connection_pool=pool)


def _cluster(parts: _Parts, timeout_s: float, max_connections: int) -> RedisCluster:
    return RedisCluster(
        startup_nodes=[ClusterNode(*host) for host in parts.hosts],
        username=parts.username,
        password=parts.password,
        max_connections=max_connections,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 1),
    )


def _read(text: str, default_port: int) -> _Parts:
    """`user:password@host:port,host/path`. Raises: ValueError that says what can't be right."""
    place, _, path = text.partition("/")
    login, _, hosts = place.rpartition("@")
    username, _, password = login.partition(":")
    return _Parts(
        tuple(_host(item, default_port) for item in hosts.split(",")),
        unquote(username) or None,
        unquote(password) or None,
        path.strip("/"),
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no host, host:port or [IPv6 address]:port")
    port = int(found["port"] or default_port)
    if not 0 < port < 65536:
        raise ValueError(f"{port} is no port: they go from 1 to 65535")
    return found["name"] or found["address"], port
