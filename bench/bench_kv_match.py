"""Prefix matching at the size of a fleet: ten million indexed blocks, prompts of a million tokens.

The chains that are matched lie all over the index and differ from round to round, so that no cache
of the processor knows them. Keys are hashed apart. Redis is measured as dense as for a full fleet,
and almost empty, where a hash holds little more than one block. Last, what a tenant can time tells
nothing of what another one has stored."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from redis.asyncio import Redis
from rorqual_kvmeta.index import BlockIndex
from rorqual_kvmeta.records import RECORD, Keys, Records, State, keys_of, record_keys
from rorqual_kvmeta.truth import BUCKET_BITS, put_records
from rorqual_policy import BLOCK_TOKENS, block_keys

from bench.report import at_most, emit
from tests.support.servers import redis_server

NUM_BLOCKS = 10_000_000
PROMPT_TOKENS = 1_000_000
PROMPT_BLOCKS = PROMPT_TOKENS // BLOCK_TOKENS
BATCH = 50_000
ROUNDS = 31
TIMED_PROMPTS, TIMED_TOKENS = 4000, 1024
NOW = 1_800_000_000.0
MODEL = 7


def made_up(rng: np.random.Generator, num_blocks: int) -> Records:
    """Live blocks of one model and a few tenants, under random keys."""
    records = np.zeros(num_blocks, RECORD)
    records["hi"] = rng.integers(2, 2**64, num_blocks, dtype=np.uint64)
    records["lo"] = rng.integers(2, 2**64, num_blocks, dtype=np.uint64)
    records["used_unix_s"], records["lifetime_s"] = int(NOW), 3 * 86_400
    records["flags"], records["model"] = int(State.LIVE), MODEL
    records["tenant"] = rng.integers(0, 100, num_blocks)
    records["size_bytes"], records["store"] = 112 << 10, 1
    return records


def median_ms(work: Callable[[int], object], rounds: int = ROUNDS) -> float:
    """Of the given number of calls, each with its own number."""
    spans = []
    for number in range(rounds):
        began_s = time.perf_counter()
        work(number)
        spans.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(spans)


def filled_index(rng: np.random.Generator, num_blocks: int) -> tuple[BlockIndex, Keys]:
    """The index, and keys of enough of its blocks for chains."""
    index, sample = BlockIndex(), []
    share = max(1, num_blocks // (4 * PROMPT_BLOCKS))
    for start in range(0, num_blocks, BATCH):
        records = made_up(rng, min(BATCH, num_blocks - start))
        index.apply(records, NOW)
        sample.append(record_keys(records[::share]))
    for part in index.parts():
        index.sweep(part, NOW, 0.0, np.zeros(0, np.uint64))
    return index, np.concatenate(sample)


def bench_hashing() -> bool:
    tokens = np.random.default_rng(1).integers(0, 129_280, PROMPT_TOKENS).astype(np.int32)

    def hash_keys(number: int) -> list[bytes]:
        return block_keys(tokens, fingerprint="model", namespace=str(number))  # type: ignore[arg-type]

    name = "kv_key_hashing_1m_tokens"
    return emit(name, median_ms(hash_keys), "ms", goal=10.0, passes=at_most)


def bench_matching(num_blocks: int) -> bool:
    rng = np.random.default_rng(0)
    began_s = time.perf_counter()
    index, known = filled_index(rng, num_blocks)
    emit("kv_index_fill", num_blocks / (time.perf_counter() - began_s) / 1e6, "million blocks/s")
    chains = [rng.permutation(known)[:PROMPT_BLOCKS] for _ in range(ROUNDS)]
    cold = record_keys(made_up(rng, PROMPT_BLOCKS))

    def match(number: int) -> None:
        assert index.match(MODEL, chains[number], NOW).num_blocks == PROMPT_BLOCKS

    name, extra = "kv_match_1m_tokens", {"num_indexed": len(index)}
    met = emit(name, median_ms(match), "ms", goal=2.0, passes=at_most, **extra)
    emit("kv_match_1m_tokens_unknown", median_ms(lambda _: index.match(MODEL, cold, NOW)), "ms")
    per_block = index.num_bytes / index.num_live
    return met & emit("kv_index_bytes_per_block", per_block, "B", goal=100.0, passes=at_most)


def bench_isolation() -> bool:
    """How often somebody who times hashing and matching would guess right whether another tenant
    has stored the same prompt: 50 % is chance.

    Which prompts are stored is drawn, and all are hashed by the other tenant first: else those that
    were hashed before would be quicker, as memory that was read is.
    """
    rng = np.random.default_rng(0)
    index, _ = filled_index(rng, 100_000)
    prompts = rng.integers(0, 129_280, (2 * TIMED_PROMPTS, TIMED_TOKENS)).astype(np.int32)
    is_stored = rng.permutation(np.arange(len(prompts)) < TIMED_PROMPTS)
    for tokens, is_kept in zip(prompts, is_stored, strict=True):
        records = stored(keys_for(tokens, "one"))
        if is_kept:
            index.apply(records, NOW)
    spans = np.zeros(len(prompts))
    for number in rng.permutation(len(prompts)):
        began_s = time.perf_counter()
        match = index.match(MODEL, keys_for(prompts[number], "other"), NOW)
        spans[number] = time.perf_counter() - began_s
        assert match.num_blocks == 0
    is_slower = np.searchsorted(np.sort(spans[~is_stored]), spans[is_stored])
    share = float(is_slower.mean()) / TIMED_PROMPTS
    rate = 100 * max(share, 1 - share)
    return emit("kv_isolation_right_guesses", rate, "%", goal=53.0, passes=at_most)


def keys_for(tokens: np.ndarray, namespace: str) -> Keys:
    return keys_of(block_keys(tokens, fingerprint="model", namespace=namespace))  # type: ignore[arg-type]


def stored(keys: Keys) -> Records:
    """Live records under these keys."""
    records = made_up(np.random.default_rng(0), len(keys))
    records["hi"], records["lo"] = keys[:, 0], keys[:, 1]
    return records


async def redis_bytes_per_block(directory: Path, num_hashes: int, num_blocks: int) -> float:
    """Growth of Redis's memory a block, with the blocks in so many of its hashes."""
    records = made_up(np.random.default_rng(0), num_blocks)
    shift = np.uint64(64 - BUCKET_BITS)
    low = records["lo"] & ((np.uint64(1) << shift) - np.uint64(1))
    records["lo"] = low | ((records["lo"] >> shift) % np.uint64(num_hashes) << shift)
    async with redis_server(directory) as server, Redis.from_url(server.url) as redis:
        before = (await redis.info("memory"))["used_memory"]
        for start in range(0, num_blocks, 2048):
            part = records[start : start + 2048]
            await put_records(redis, part, now_unix_s=NOW, memory_s=86_400.0, only_live=False)
        return float((await redis.info("memory"))["used_memory"] - before) / num_blocks


async def bench_redis(num_blocks: int) -> bool:
    met = True
    hashes = 1 << BUCKET_BITS
    dense = max(1, hashes * 100_000 // num_blocks)
    for name, num_hashes, stored in (
        ("kv_redis_bytes_per_block", dense, 100_000),
        ("kv_redis_bytes_per_block_sparse", hashes, 30_000),
    ):
        with tempfile.TemporaryDirectory() as directory:
            per_block = await redis_bytes_per_block(Path(directory), num_hashes, stored)
        met &= emit(name, per_block, "B", goal=250.0, passes=at_most)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=NUM_BLOCKS, help="indexed blocks")
    arguments = parser.parse_args()
    met = bench_hashing()
    met &= bench_matching(arguments.blocks)
    met &= bench_isolation()
    met &= asyncio.run(bench_redis(arguments.blocks))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
