"""Blocks in a real Redis server: verified like those in files, and its absence is a miss."""

import pytest
import redis
from rorqual_policy import ValueEviction
from rorqual_runtime.blockstore import BlockMark, Provenance
from rorqual_runtime.blockstore.redis_store import RedisBlockStore
from rorqual_runtime.blockstore.upkeep import make_block_store
from rorqual_runtime.clock import ManualClock

from tests.support.blocks import FINGERPRINT, SIZE, block, got, key_of, put
from tests.support.servers import redis_server


@pytest.fixture
async def server(tmp_path):
    async with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def told():
    return []


@pytest.fixture
def store(server, told):
    url = f"redis://127.0.0.1:{server.port}"
    store = make_block_store(
        url, 1, eviction=ValueEviction(), clock=ManualClock(), on_forgotten=told.extend
    )
    yield store
    store.close()


async def test_blocks_come_back_verified(store, server):
    mark = BlockMark(Provenance.REPLAYED, depth=3)
    assert put(store, 1, ttl_s=1000, mark=mark) and put(store, 1)
    assert got(store, 1) == block(1) and got(store, 1, "model-b") is None
    blocks = [(key_of(number), block(number)) for number in range(2, 6)]
    assert store.put_many(FINGERPRINT, blocks, mark=mark) == [True] * 4
    into = [bytearray(SIZE) for _ in range(5)]
    wanted = [(key_of(number), buffer) for number, buffer in enumerate(into, start=2)]
    assert store.get_many(FINGERPRINT, wanted) == [True] * 4 + [False]
    assert all(into[number - 2] == block(number) for number in range(2, 6))
    listed = {listing.key: listing for listing in store.listing()}
    assert len(listed) == 5 and listed[key_of(4)].mark == BlockMark(Provenance.REPLAYED, depth=5)
    assert listed[key_of(4)].fingerprint == FINGERPRINT
    assert store.has(FINGERPRINT, key_of(2)) and store.delete(FINGERPRINT, key_of(2))
    assert not store.has(FINGERPRINT, key_of(2)) and got(store, 2) is None
    numbers = (3, 4, 5, 2, 1)
    assert store.num_stored(FINGERPRINT, [key_of(number) for number in numbers]) == 3
    exact_first = [key_of(number) for number in (1, 3, 4)]
    found = [store.num_stored(FINGERPRINT, exact_first, num_exact=number) for number in (1, 2)]
    assert found == [3, 1]
    assert store.stats().num_blocks == 4


async def test_only_an_exact_block_takes_the_place_of_another(store, server):
    replayed, exact = BlockMark(Provenance.REPLAYED), BlockMark(Provenance.EXACT)
    for mark in (replayed, exact, replayed):
        assert put(store, 1, mark=mark)
    (listed,) = store.listing()
    assert listed.mark.provenance is Provenance.EXACT
    assert (store.stats().puts, store.stats().duplicates) == (2, 1)


async def test_blocks_expire(store, server):
    put(store, 1, ttl_s=1000)
    client = redis.Redis(port=server.port)
    (key,) = client.keys("rqblock:*")
    assert 990 < client.ttl(key) <= 1000


@pytest.mark.parametrize("harm", ["bit", "cut", "another block"])
async def test_damage_is_a_miss_and_the_record_goes(store, server, told, harm):
    put(store, 1)
    put(store, 2)
    client = redis.Redis(port=server.port)
    key, other = (
        next(k for k in client.keys("rqblock:*") if key_of(n).hex() in k.decode()) for n in (1, 2)
    )
    raw = bytearray(client.get(key))
    raw[len(raw) // 2] ^= 1
    bad = {"bit": bytes(raw), "cut": bytes(raw[:-5]), "another block": client.get(other)}[harm]
    client.set(key, bad)
    assert got(store, 1) is None and got(store, 2) == block(2)
    assert store.stats().corrupt == 1 and not client.exists(key)
    assert [(block.key, block.reason) for block in told] == [(key_of(1), "corrupt")]


async def test_a_server_that_is_away_is_a_miss_and_comes_back(server):
    clock = ManualClock()
    url = f"redis://127.0.0.1:{server.port}"
    store = make_block_store(url, 1, eviction=ValueEviction(), clock=clock)
    assert put(store, 1)
    await server.kill()
    assert got(store, 1) is None and not put(store, 2) and not store.has(FINGERPRINT, key_of(1))
    assert list(store.listing()) == [] and store.stats().num_blocks == 0
    await server.start()
    assert got(store, 1) is None  # not asked again so soon
    await clock.advance(2)
    assert put(store, 3) and got(store, 3) == block(3)
    store.close()


def test_a_servers_identity_is_where_it_is_and_not_who_signs_in():
    def identity(url):
        store = RedisBlockStore(url)
        store.close()
        return store.identity

    own = identity("redis://prefill:secret@kv:6380/2")
    assert identity("redis://decode:other@kv:6380/2") == identity("valkey://kv:6380/2") == own
    others = {identity(f"redis://{place}") for place in ("kv:6380/3", "kv:6379/2", "vk:6380/2")}
    assert len(others | {own}) == 4
