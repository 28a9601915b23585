"""The block store against `fio` on the same directory: random reads and writes of 112 KiB blocks.

Turn by turn, in one run. fio's figure is its best engine (system calls from four threads, libaio
with 16 requests in flight, io_uring with 16 or 64), past the page cache, within a file as large as
the store. The store reads batches of random blocks, verified, and writes new blocks while full, so
that every write has evicted another block. Its memory is prefill's kind: aligned, in huge pages
where there are some. A turn gives a rate; a figure is the median of its turns. On a busy machine
the ratio also says how the processor was shared out: fio takes hardly any of it, the store what the
cpu figures say."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rorqual_policy import ValueEviction
from rorqual_runtime.blockstore import BlockStore
from rorqual_runtime.blockstore.slot_io import page_memory

from bench.report import emit

BLOCK_BYTES = 112 << 10
CAPACITY_BYTES = 1 << 30
BATCH_BLOCKS = 128
NUM_TURNS = 3
TURN_S = 2.0
GOAL = 0.85
ENGINES = {
    "psync": ("--ioengine=psync", "--numjobs=4", "--thread"),
    "libaio": ("--ioengine=libaio", "--iodepth=16"),
    "io_uring": ("--ioengine=io_uring", "--iodepth=16"),
    "io_uring, 64": ("--ioengine=io_uring", "--iodepth=64"),
}


def fio_bytes_per_s(directory: Path, access: str, engine: str) -> float:
    """0 when this machine lacks the engine. access: randread or randwrite."""
    command = [
        "fio", "--name=blocks", f"--directory={directory}", "--filename=fio",
        f"--size={CAPACITY_BYTES}", f"--bs={BLOCK_BYTES}", f"--rw={access}", "--direct=1",
        *ENGINES[engine], f"--runtime={TURN_S}", "--time_based",
        "--group_reporting", "--output-format=json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return 0.0
    report = json.loads(done.stdout[done.stdout.index("{") :])
    side = "read" if access == "randread" else "write"
    return float(report["jobs"][0][side]["bw_bytes"])


def page_aligned() -> np.ndarray:
    """Memory of a batch, as host memory of prefill has it."""
    shape = BATCH_BLOCKS, BLOCK_BYTES
    return np.frombuffer(page_memory(shape[0] * shape[1]), np.uint8).reshape(shape)


class StoreUnderTest:
    """A full store, and the keys of blocks that are in it."""

    def __init__(self, directory: Path) -> None:
        self.store = BlockStore(directory / "store", CAPACITY_BYTES, eviction=ValueEviction())
        self.blocks, self.into = page_aligned(), page_aligned()
        self.blocks[:] = np.random.default_rng(0).integers(0, 256, self.blocks.shape, np.uint8)
        self.dice = random.Random(0)
        while self.store.stats().evicted < BATCH_BLOCKS:
            self.write_batch()
        self.keys = [listing.key for listing in self.store.listing()]

    def read_batch(self) -> None:
        keys = self.dice.sample(self.keys, BATCH_BLOCKS)
        hits = self.store.get_many("bench", list(zip(keys, self.into, strict=True)))
        assert all(hits)

    def write_batch(self) -> None:
        keys = [os.urandom(16) for _ in range(BATCH_BLOCKS)]
        kept = self.store.put_many("bench", list(zip(keys, self.blocks, strict=True)))
        assert all(kept)


class Turn(NamedTuple):
    bytes_per_s: float
    cpu_us: float
    """Of this process, a block."""


def turn(batch: Callable[[], None]) -> Turn:
    began_s, began_cpu_s, num_blocks = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began_s < TURN_S:
        batch()
        num_blocks += BATCH_BLOCKS
    cpu_s = time.process_time() - began_cpu_s
    rate = num_blocks * BLOCK_BYTES / (time.perf_counter() - began_s)
    return Turn(rate, cpu_s / num_blocks * 1e6)


def measure(side: str, access: str, directory: Path, batch: Callable[[], None]) -> bool:
    """side: what the figures are called."""
    fio: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    ours = []
    for _ in range(NUM_TURNS):
        for engine, rates in fio.items():
            rates.append(fio_bytes_per_s(directory, access, engine))
        ours.append(turn(batch))
    rate, best = max((statistics.median(rates), engine) for engine, rates in fio.items())
    own_rate = statistics.median(one.bytes_per_s for one in ours)
    emit(f"kv_store_fio_{side}_112k", rate / 1e9, "GB/s", engine=best)
    emit(f"kv_store_{side}_112k", own_rate / 1e9, "GB/s")
    emit(f"kv_store_{side}_112k_cpu", statistics.median(one.cpu_us for one in ours), "us/block")
    return emit(f"kv_store_{side}_112k_vs_fio", own_rate / rate, "ratio", goal=GOAL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(".rorqual/bench"), help="what to measure")
    directory: Path = parser.parse_args().dir
    if shutil.which("fio") is None:
        print("bench-kv: fio is not installed (apt-get install fio): skipped", file=sys.stderr)
        return 0
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as name:
        under_test = StoreUnderTest(Path(name))
        reads_pass = measure("read", "randread", Path(name), under_test.read_batch)
        under_test.keys = []
        writes_pass = measure("write", "randwrite", Path(name), under_test.write_batch)
        under_test.store.close()
    return not (reads_pass and writes_pass)


if __name__ == "__main__":
    raise SystemExit(main())
