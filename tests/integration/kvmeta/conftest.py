"""A kvmeta in this process on real NATS and Redis."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest_asyncio
from rorqual_kvmeta.service import KvmetaService
from rorqual_kvmeta.settings import KvmetaSettings
from rorqual_proto.v1 import generation_pb2, kvmeta_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.redis_link import RedisLink
from rorqual_runtime.service import open_service
from rorqual_runtime.settings import RuntimeSettings

from tests.support.waiting import WAIT_S, until

CHAT = generation_pb2.TRAFFIC_CLASS_CHAT
AGENT = generation_pb2.TRAFFIC_CLASS_AGENT


@contextlib.asynccontextmanager
async def running_kvmeta(
    settings: RuntimeSettings, redis_url: str, *, clock: ManualClock | None = None, **fields
) -> AsyncIterator[KvmetaService]:
    """A kvmeta that serves until the block ends, by its own clock if one is given, and waits for a
    Redis on a busy machine."""
    chosen = KvmetaSettings(**{"redis_timeout_s": 10.0, "redis_write_timeout_s": 10.0, **fields})
    link = RedisLink(
        redis_url,
        timeout_s=chosen.redis_timeout_s,
        probe_interval_s=chosen.redis_probe_interval_s,
        max_connections=chosen.redis_connections,
    )
    async with contextlib.aclosing(link), open_service("kvmeta", settings) as ctx:
        ctx.clock = clock or ctx.clock
        service = KvmetaService(ctx, link, chosen)
        await service.start()
        await until(lambda: service.mirror.is_loaded or not link.is_up)
        yield service


@dataclass
class Client:
    """What router, prefill and decode ask of kvmeta."""

    bus: Bus

    async def match(self, keys, fingerprint="model", **fields) -> kvmeta_pb2.Match:
        request = kvmeta_pb2.MatchRequest(
            request_id="r",
            model_fingerprint=fingerprint,
            packed_block_keys=b"".join(keys),
            **fields,
        )
        reply = await self.bus.request(
            subjects.kvmeta_match(), request, kvmeta_pb2.MatchReply, timeout_s=WAIT_S
        )
        return reply.match

    async def register(self, keys, fingerprint="model", traffic_class=CHAT, **fields) -> int:
        blocks = [
            kvmeta_pb2.BlockRecord(
                key=key,
                size_bytes=1 << 20,
                traffic_class=traffic_class,
                position=position,
                **{"store": "local", **fields},
            )
            for position, key in enumerate(keys)
        ]
        request = kvmeta_pb2.RegisterBlocksRequest(model_fingerprint=fingerprint, blocks=blocks)
        reply = await self.bus.request(
            subjects.kvmeta_register(), request, kvmeta_pb2.RegisterBlocksReply, timeout_s=WAIT_S
        )
        return reply.num_registered

    async def forget(self, keys, fingerprint="model", reason="missing") -> None:
        request = kvmeta_pb2.ForgetBlocksRequest(
            model_fingerprint=fingerprint, keys=keys, reason=reason
        )
        await self.bus.publish(subjects.kvmeta_forget(), request)

    async def clear(self, **fields) -> int:
        reply = await self.bus.request(
            subjects.kvmeta_clear(),
            kvmeta_pb2.ClearBlocksRequest(**fields),
            kvmeta_pb2.ClearBlocksReply,
            timeout_s=WAIT_S,
        )
        return reply.num_cleared

    async def drops(self) -> list[bytes]:
        """Keys of blocks that stores are told to delete, from now on."""
        keys: list[bytes] = []

        async def on_drop(request, _context) -> None:
            assert request.model_fingerprint == "model"
            packed = request.packed_keys
            keys.extend(packed[i : i + 16] for i in range(0, len(packed), 16))

        await self.bus.subscribe(subjects.kvmeta_drop(), kvmeta_pb2.DropBlocksRequest, on_drop)
        return keys

    async def release(self, lease_id: str) -> None:
        request = kvmeta_pb2.ReleaseLeaseRequest(lease_id=lease_id)
        await self.bus.publish(subjects.kvmeta_release(), request)


@pytest_asyncio.fixture
async def client(runtime_settings) -> AsyncIterator[Client]:
    bus = await Bus.connect(runtime_settings, "fake", instance_id="fake-1")
    yield Client(bus)
    await bus.close()
