"""The truth may lie in a Redis Cluster, or in a server that Sentinels name."""

import pytest
from rorqual_policy import block_keys

from tests.support import servers
from tests.support.waiting import until

from .conftest import running_kvmeta

KEYS = block_keys(range(40 * 128), fingerprint="model", namespace="n")


@pytest.mark.parametrize("kind", [servers.redis_cluster, servers.redis_sentinel])
async def test_everything_works_there_too(runtime_settings, tmp_path, client, kind):
    async with kind(tmp_path) as url:
        async with running_kvmeta(runtime_settings, url, tend_interval_s=0.1) as kvmeta:
            assert await client.register(KEYS, tenant="t") == 40
            assert (await client.match(KEYS)).num_matched_blocks == 40
            await until(lambda: kvmeta.upkeep.num_leases == 1)
            await client.forget([KEYS[30]], reason="corrupt")
            await until(lambda: kvmeta.index.num_live == 39)
            assert kvmeta.link_is_up
        async with running_kvmeta(runtime_settings, url) as kvmeta:
            assert kvmeta.index.num_live == 39
            match = await client.match(KEYS)
            assert (match.num_matched_blocks, match.miss_reason) == (30, "corrupt")
            await kvmeta.upkeep.sweep()
            assert await client.clear(tenant="t", has_tenant=True) == 40
            assert (await client.match(KEYS)).miss_reason == "never_stored"
