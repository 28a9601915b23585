"""Tensor plane and block store between two real processes: shared memory against memcpy, gRPC, and
small transfers. Large ones are measured in batches, those against memcpy turn by turn. A batch
gives its best time (a busy machine only ever adds); a figure is the median of its batches."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
from rorqual_policy import ValueEviction
from rorqual_proto.v1 import tensor_pb2
from rorqual_runtime.blockstore import BlockStore
from rorqual_runtime.identities.issue import issue
from rorqual_runtime.tensors import TensorPlane

from bench.report import at_most, emit
from tests.support.tensor_process import HOST_ID, TensorProcess, open_plane

BIG_BYTES = 64 << 20
SMALL_BYTES = 200 << 10
BLOCK_BYTES = 2_949_120  # 128 tokens of SmolLM2-135M in bf16
NUM_BATCHES, BATCH_ROUNDS = 7, 6


async def timed_s(work: Callable[[], Awaitable[object]]) -> float:
    began_s = time.perf_counter()
    await work()
    return time.perf_counter() - began_s


async def bench_big_shm(reader: TensorPlane, ticket: tensor_pb2.TensorTicket) -> bool:
    """Fetch into a preallocated buffer against a plain copy of as many bytes, turn by turn."""
    source, target = np.ones(BIG_BYTES, np.uint8), np.zeros(BIG_BYTES, np.uint8)

    async def plain_copy() -> None:
        np.copyto(target, source)

    await reader.fetch(ticket, target)
    copies_s, fetches_s = [], []
    for _ in range(NUM_BATCHES):
        turns = [
            (await timed_s(plain_copy), await timed_s(lambda: reader.fetch(ticket, target)))
            for _ in range(BATCH_ROUNDS)
        ]
        copies_s.append(min(copy_s for copy_s, _ in turns))
        fetches_s.append(min(fetch_s for _, fetch_s in turns))
    ratios = [copy_s / fetch_s for copy_s, fetch_s in zip(copies_s, fetches_s, strict=True)]
    emit("memcpy_64mib", BIG_BYTES / statistics.median(copies_s) / 1e9, "GB/s")
    emit("tensors_shm_64mib", BIG_BYTES / statistics.median(fetches_s) / 1e9, "GB/s")
    return emit("tensors_shm_64mib_vs_memcpy", statistics.median(ratios), "ratio", goal=0.8)


async def bench_big(
    name: str, reader: TensorPlane, ticket: tensor_pb2.TensorTicket, goal: float | None
) -> bool:
    target = np.zeros(BIG_BYTES, np.uint8)
    await reader.fetch(ticket, target)
    batches_s = []
    for _ in range(NUM_BATCHES):
        rounds = [await timed_s(lambda: reader.fetch(ticket, target)) for _ in range(BATCH_ROUNDS)]
        batches_s.append(min(rounds))
    return emit(name, BIG_BYTES / statistics.median(batches_s) / 1e9, "GB/s", goal=goal)


async def bench_small(
    name: str, reader: TensorPlane, ticket: tensor_pb2.TensorTicket, goal_us: float | None
) -> bool:
    target = np.zeros(SMALL_BYTES, np.uint8)
    times_s = [await timed_s(lambda: reader.fetch(ticket, target)) for _ in range(500)]
    value = statistics.median(times_s) * 1e6
    return emit(name, value, "us", goal=goal_us, passes=at_most)


async def bench_tls(secrets: Path) -> None:
    """gRPC between two that show each other certificates."""
    issue(secrets)
    async with (
        TensorProcess.started(
            "owner", shm_bytes=256 << 20, secrets_dir=secrets / "prefill"
        ) as owner,
        await open_plane(
            "far", host_id="another", shm_bytes=1 << 20, secrets_dir=secrets / "decode"
        ) as far,
    ):
        big = await owner.publish(BIG_BYTES, lease_s=600)
        small = await owner.publish(SMALL_BYTES, lease_s=600)
        await bench_big("tensors_grpc_tls_64mib", far, big, None)
        await bench_small("tensors_grpc_tls_200kib_p50", far, small, None)


def bench_block_store() -> bool:
    """A block in the page cache, and a new one."""
    data, into = np.random.default_rng(0).bytes(BLOCK_BYTES), bytearray(BLOCK_BYTES)
    gets_s, puts_s = [], []
    with tempfile.TemporaryDirectory() as directory:
        store = BlockStore(
            directory, 200 * BLOCK_BYTES, eviction=ValueEviction(), io_mode="buffered"
        )
        for _ in range(100):
            key = os.urandom(16)
            began_s = time.perf_counter()
            store.put("bench", key, data)
            put_s = time.perf_counter()
            assert store.get("bench", key, into)
            gets_s.append(time.perf_counter() - put_s)
            puts_s.append(put_s - began_s)
        store.close()
    emit("blockstore_put_2_9mb", statistics.median(puts_s) * 1e3, "ms")
    value = statistics.median(gets_s) * 1e3
    return emit("blockstore_get_2_9mb", value, "ms", goal=1.0, passes=at_most)


async def main() -> bool:
    passed = []
    with tempfile.TemporaryDirectory() as directory:
        await bench_tls(Path(directory))
    async with (
        TensorProcess.started("owner", shm_bytes=256 << 20) as owner,
        await open_plane("near", host_id=HOST_ID, shm_bytes=1 << 20) as near,
        await open_plane("far", host_id="another", shm_bytes=1 << 20) as far,
    ):
        big = await owner.publish(BIG_BYTES, lease_s=600)
        hashed = await owner.publish(BIG_BYTES, lease_s=600, checksum=True)
        small = await owner.publish(SMALL_BYTES, lease_s=600)
        passed.append(await bench_big_shm(near, big))
        passed.append(await bench_big("tensors_shm_64mib_checksum", near, hashed, None))
        passed.append(await bench_big("tensors_grpc_64mib", far, big, 1.0))
        passed.append(await bench_small("tensors_shm_200kib_p50", near, small, 200))
        passed.append(await bench_small("tensors_grpc_200kib_p50", far, small, None))
    passed.append(bench_block_store())
    return all(passed)


if __name__ == "__main__":
    raise SystemExit(not asyncio.run(main()))
