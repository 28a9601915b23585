"""URLs of a Redis: what they name, and what is wrong with one."""

import re

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool
from rorqual_runtime.redis_clients import RedisClient, open_client


def opened(url: str) -> RedisClient:
    return open_client(url, timeout_s=1.0, max_connections=1)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://host", "names its master"),
        ("redis+sentinel://host/main/one", "'one' is no database"),
        ("redis+cluster://", "'' is no host"),
        ("redis+cluster://a,,b", "'' is no host"),
        ("redis+cluster://me:secret@host:port", "'host:port' is no host"),
        ("redis+cluster://host:65536", "65536 is no port"),
        ("redis+cluster://::1", "'::1' is no host"),
        ("http://host", "URL"),
    ],
)
def test_a_url_of_no_known_form_is_refused_in_words_that_keep_its_password(
    url: str, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        opened(url)
    assert "secret" not in str(caught.value)


async def test_addresses_of_ipv6_stand_in_brackets() -> None:
    cluster = opened("redis+cluster://[::1],host:7,[fe80::2]:8")
    assert isinstance(cluster, RedisCluster)
    nodes = {(node.host, node.port) for node in cluster.nodes_manager.startup_nodes.values()}
    assert nodes == {("::1", 6379), ("host", 7), ("fe80::2", 8)}


async def test_a_master_that_sentinels_know_has_a_login_and_a_database() -> None:
    client = opened("redis+sentinel://me:s%40crt@[::1]:1,b/main/3")
    assert isinstance(client, Redis)
    pool = client.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    asked = [
        sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels
    ]
    assert [(kwargs["host"], kwargs["port"]) for kwargs in asked] == [("::1", 1), ("b", 26379)]
    assert pool.service_name == "main"
    kwargs = pool.connection_kwargs
    assert (kwargs["username"], kwargs["password"], kwargs["db"]) == ("me", "s@crt", 3)
