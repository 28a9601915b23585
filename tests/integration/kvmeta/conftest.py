"""A kvmeta in this process on real NATS and Redis."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest_asyncio
from rorqual_kvmeta.redis_link import RedisLink
from rorqual_kvmeta.service import KvmetaService
from rorqual_kvmeta.settings import KvmetaSettings
from rorqual_proto.v1 import generation_pb2, kvmeta_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.service import open_service
from rorqual_runtime.settings import RuntimeSettings

CHAT = generation_pb2.TRAFFIC_CLASS_CHAT
AGENT = generation_pb2.TRAFFIC_CLASS_AGENT


@contextlib.asynccontextmanager
async def running_kvmeta(
    settings: RuntimeSettings, redis_url: str, **fields
) -> AsyncIterator[KvmetaService]:
    """A kvmeta that serves until the block ends."""
    chosen = KvmetaSettings(**fields)
    link = RedisLink(
        redis_url,
        timeout_s=chosen.redis_timeout_s,
        probe_interval_s=chosen.redis_probe_interval_s,
        max_connections=chosen.redis_connections,
    )
    async with contextlib.aclosing(link), open_service("kvmeta", settings) as ctx:
        service = KvmetaService(ctx, link, chosen)
        await service.start()
        yield service


@dataclass
class Client:
    """What router, prefill and decode ask of kvmeta."""

    bus: Bus

    async def match(self, keys, fingerprint="model") -> kvmeta_pb2.Match:
        request = kvmeta_pb2.MatchRequest(
            request_id="r", model_fingerprint=fingerprint, block_keys=keys
        )
        reply = await self.bus.request(
            subjects.kvmeta_match(), request, kvmeta_pb2.MatchReply, timeout_s=3.0
        )
        return reply.match

    async def register(self, keys, fingerprint="model", traffic_class=CHAT) -> int:
        blocks = [
            kvmeta_pb2.BlockRecord(
                key=key, size_bytes=1 << 20, traffic_class=traffic_class, store="local"
            )
            for key in keys
        ]
        request = kvmeta_pb2.RegisterBlocksRequest(model_fingerprint=fingerprint, blocks=blocks)
        reply = await self.bus.request(
            subjects.kvmeta_register(), request, kvmeta_pb2.RegisterBlocksReply, timeout_s=3.0
        )
        return reply.num_registered

    async def forget(self, keys, fingerprint="model") -> None:
        request = kvmeta_pb2.ForgetBlocksRequest(
            model_fingerprint=fingerprint, keys=keys, reason="missing"
        )
        await self.bus.publish(subjects.kvmeta_forget(), request)

    async def release(self, lease_id: str) -> None:
        request = kvmeta_pb2.ReleaseLeaseRequest(lease_id=lease_id)
        await self.bus.publish(subjects.kvmeta_release(), request)


@pytest_asyncio.fixture
async def client(runtime_settings) -> AsyncIterator[Client]:
    bus = await Bus.connect(runtime_settings, "fake", instance_id="fake-1")
    yield Client(bus)
    await bus.close()
