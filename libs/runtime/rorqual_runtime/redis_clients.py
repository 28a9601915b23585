"""Which Redis: one server, one that Sentinels name, or a Cluster; chosen by the URL.

redis://host:6379/0                       one server (rediss:// with TLS)
redis+sentinel://host:26379,host2/name/0  the master that Sentinels know under this name
redis+cluster://host:6379,host2:6379      a Cluster, found from any of its nodes
"""

from __future__ import annotations

from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

RedisClient: TypeAlias = "Redis | RedisCluster"

SENTINEL_PORT, CLUSTER_PORT = 26379, 6379


def open_client(url: str, *, timeout_s: float, max_connections: int) -> RedisClient:
    """A client that connects when it is used. Raises: ValueError for a URL of no known form."""
    parts = urlsplit(url)
    if parts.scheme == "redis+sentinel":
        return _by_sentinel(parts, timeout_s, max_connections)
    if parts.scheme == "redis+cluster":
        return _cluster(parts, timeout_s, max_connections)
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


def _by_sentinel(parts: SplitResult, timeout_s: float, max_connections: int) -> Redis:
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("a redis+sentinel URL names its master: redis+sentinel://host:26379/name")
    login = {
        "username": parts.username and unquote(parts.username),
        "password": parts.password and unquote(parts.password),
    }
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        _hosts(parts, SENTINEL_PORT),
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


def _cluster(parts: SplitResult, timeout_s: float, max_connections: int) -> RedisCluster:
    return RedisCluster(
        startup_nodes=[ClusterNode(*host) for host in _hosts(parts, CLUSTER_PORT)],
        username=parts.username and unquote(parts.username),
        password=parts.password and unquote(parts.password),
        max_connections=max_connections,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 1),
    )


def _hosts(parts: SplitResult, default_port: int) -> list[tuple[str, int]]:
    """Raises: ValueError when there is none, or a port is no number."""
    hosts = []
    for item in parts.netloc.rpartition("@")[2].split(","):
        host, _, port = item.partition(":")
        if not host:
            raise ValueError(f"a host is missing in {parts.netloc!r}")
        hosts.append((host, int(port or default_port)))
    return hosts
