"""A trace of requests through the real kvmeta and block store, against a cache without bounds.

The trace is in any format that the simulator reads and that tells of blocks, such as Mooncake's:
one JSON object a line with `input_length` and `hash_ids`, one id for each 512 tokens of the prompt;
equal ids stand for equal tokens behind equal tokens. Requests follow each other without their
pauses. Each is matched, its known blocks are read and compared, and the others are stored and
registered. The ideal is what a cache would save that forgets nothing and knows single tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rorqual_kvmeta.service import KvmetaService
from rorqual_kvmeta.settings import KvmetaSettings
from rorqual_policy import BLOCK_TOKENS, ValueEviction, block_keys
from rorqual_proto.v1 import kvmeta_pb2
from rorqual_runtime import subjects
from rorqual_runtime.blockstore import BlockStore
from rorqual_runtime.bus import Bus
from rorqual_runtime.redis_link import RedisLink
from rorqual_runtime.service import open_service
from rorqual_runtime.settings import RuntimeSettings
from rorqual_sim.traces import Trace, read_trace

from bench.report import at_most, emit
from tests.support.servers import nats_server, redis_server

PAYLOAD_BYTES = 1024
FINGERPRINT, NAMESPACE = "traced-model", "traced-tenant"
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Traced:
    """One request of a trace. An id stands for block_tokens tokens, and for all before them."""

    num_tokens: int
    hash_ids: tuple[int, ...]
    block_tokens: int

    def token_ids(self) -> np.ndarray:
        """Tokens that agree exactly where the hash ids do."""
        ids = np.repeat(np.array(self.hash_ids, np.int64), self.block_tokens)[: self.num_tokens]
        places = np.arange(len(ids)) % self.block_tokens
        return ((ids * 1_000_003 + places * 7_919) % (2**31 - 1)).astype(np.int32)


def requests_of(trace: Trace, limit: int) -> Iterator[Traced]:
    """Requests in order, the first ones only where there is a limit."""
    for index in range(min(limit or len(trace), len(trace))):
        start, end = trace.block_start[index : index + 2]
        ids = tuple(trace.block_ids[start:end].tolist())
        num_tokens = min(int(trace.input_tokens[index]), len(ids) * trace.block_tokens)
        yield Traced(num_tokens, ids, trace.block_tokens)


class Ideal:
    """Tokens that a cache without bounds would have saved."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def saved_tokens(self, request: Traced) -> int:
        """Of this request; from now on it is known, too."""
        ids = request.hash_ids
        known = next((i for i, i_d in enumerate(ids) if i_d not in self._seen), len(ids))
        self._seen.update(ids)
        return min(known * request.block_tokens, request.num_tokens)


class TracedFleet:
    """kvmeta on the bus, and a store, as prefill and decode use them."""

    def __init__(self, bus: Bus, store: BlockStore) -> None:
        self._bus = bus
        self._store = store
        self.num_wrong = 0
        self.num_lost = 0
        """Blocks that kvmeta promised and the store did not have."""
        self.match_s = 0.0

    async def serve(self, token_ids: np.ndarray) -> int:
        """Blocks found of one prompt; the others are there afterwards."""
        keys = block_keys(token_ids, fingerprint=FINGERPRINT, namespace=NAMESPACE)  # type: ignore[arg-type]
        num_found = min(await self._match(keys), len(keys))
        await asyncio.to_thread(self._check, keys[:num_found])
        if num_found < len(keys):
            await self._add(keys[num_found:], num_found)
        return num_found

    async def _match(self, keys: Sequence[bytes]) -> int:
        request = kvmeta_pb2.MatchRequest(
            request_id="traced", model_fingerprint=FINGERPRINT, packed_block_keys=b"".join(keys)
        )
        began_s = time.perf_counter()
        reply = await self._bus.request(
            subjects.kvmeta_match(), request, kvmeta_pb2.MatchReply, timeout_s=TIMEOUT_S
        )
        self.match_s += time.perf_counter() - began_s
        if reply.match.lease_id:
            release = kvmeta_pb2.ReleaseLeaseRequest(lease_id=reply.match.lease_id)
            await self._bus.publish(subjects.kvmeta_release(), release)
        return int(reply.match.num_matched_blocks)

    def _check(self, keys: Sequence[bytes]) -> None:
        into = np.zeros((len(keys), PAYLOAD_BYTES), np.uint8)
        found = self._store.get_many(FINGERPRINT, list(zip(keys, into, strict=True)))
        self.num_lost += len(keys) - sum(found)
        self.num_wrong += sum(
            is_there and row.tobytes() != _payload(key)
            for key, row, is_there in zip(keys, into, found, strict=True)
        )

    async def _add(self, keys: Sequence[bytes], position: int) -> None:
        blocks = [(key, _payload(key)) for key in keys]
        await asyncio.to_thread(self._store.put_many, FINGERPRINT, blocks)
        for start in range(0, len(keys), 256):
            request = kvmeta_pb2.RegisterBlocksRequest(
                model_fingerprint=FINGERPRINT,
                blocks=[
                    kvmeta_pb2.BlockRecord(
                        key=key,
                        size_bytes=PAYLOAD_BYTES,
                        store="local",
                        tenant=NAMESPACE,
                        position=position + start + index,
                    )
                    for index, key in enumerate(keys[start : start + 256])
                ],
            )
            await self._bus.request(
                subjects.kvmeta_register(),
                request,
                kvmeta_pb2.RegisterBlocksReply,
                timeout_s=TIMEOUT_S,
            )


def _payload(key: bytes) -> bytes:
    return key * (PAYLOAD_BYTES // len(key))


async def replay(requests: Iterable[Traced], directory: Path) -> bool:
    """Prints the figures; whether the hit rate is near the ideal and no block was wrong."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(directory))
        redis = await stack.enter_async_context(redis_server(directory))
        settings = RuntimeSettings(nats_url=nats.url, home=directory / "home", log_level="error")
        link = RedisLink(redis.url, timeout_s=10.0, probe_interval_s=0.25, max_connections=16)
        stack.push_async_callback(link.aclose)
        ctx = await stack.enter_async_context(open_service("kvmeta", settings))
        kvmeta = KvmetaService(ctx, link, KvmetaSettings())
        await kvmeta.start()
        bus = await Bus.connect(settings, "traced", instance_id="traced-1")
        stack.push_async_callback(bus.close)
        store = BlockStore(directory / "store", 64 << 30, eviction=ValueEviction())
        stack.callback(store.close)
        return await _replay(requests, TracedFleet(bus, store), kvmeta)


async def _replay(requests: Iterable[Traced], fleet: TracedFleet, kvmeta: KvmetaService) -> bool:
    ideal, num_tokens, num_saved, num_ideal, num_requests = Ideal(), 0, 0, 0, 0
    began_s = time.perf_counter()
    for request in requests:
        num_requests += 1
        num_tokens += request.num_tokens
        num_ideal += ideal.saved_tokens(request)
        num_saved += await fleet.serve(request.token_ids()) * BLOCK_TOKENS
    if not num_tokens:
        print("kv-trace: the trace tells of no blocks", file=sys.stderr)
        return False
    rate, best = 100 * num_saved / num_tokens, 100 * num_ideal / num_tokens
    facts = {
        "requests": num_requests,
        "blocks": kvmeta.index.num_live,
        "requests_per_s": round(num_requests / (time.perf_counter() - began_s), 1),
        "match_ms": round(1e3 * fleet.match_s / num_requests, 3),
    }
    emit("kv_trace_ideal_hit_rate", best, "%")
    met = emit("kv_trace_hit_rate", rate, "%", goal=round(best - 0.5, 4), **facts)
    met &= emit("kv_trace_wrong_blocks", fleet.num_wrong, "blocks", goal=0, passes=at_most)
    return met & emit("kv_trace_lost_blocks", fleet.num_lost, "blocks", goal=0, passes=at_most)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path, help="trace with block ids, such as Mooncake's")
    parser.add_argument("--requests", type=int, default=0, help="only the first ones; 0 = all")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rorqual-trace-") as directory:
        try:
            requests = requests_of(read_trace(arguments.trace), arguments.requests)
            met = asyncio.run(replay(requests, Path(directory)))
        except (OSError, ValueError) as error:
            print(f"kv-trace: {error}", file=sys.stderr)
            return 2
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
