"""One directory, several processes, some of which are killed: a hit is right or it is a miss."""

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator

from rorqual_runtime.blockstore import BlockStore
from rorqual_runtime.blockstore.record import HEADER_BYTES

from tests.support.blockstore_process import FINGERPRINT, NUM_KEYS, SIZE, block, key_of

RECORD = SIZE + HEADER_BYTES
FOREVER = 10_000_000


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-m", "tests.support.blockstore_process", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def count_right_blocks(store: BlockStore) -> int:
    """Read every key; a wrong byte fails the test."""
    into = bytearray(SIZE)
    num_right = 0
    for number in range(NUM_KEYS):
        if store.get(FINGERPRINT, key_of(number), into):
            assert into == block(number)
            num_right += 1
    return num_right


def record_bytes(root) -> int:
    total = 0
    for path in root.glob("[0-9a-f][0-9a-f]/*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_a_writer_killed_anywhere_never_leaves_wrong_data(tmp_path):
    dice = random.Random(1)
    for round_number in range(8):
        with started("work", tmp_path, 40 * RECORD, round_number, FOREVER) as writer:
            assert writer.stdout is not None and writer.stdout.readline()
            time.sleep(dice.uniform(0.02, 0.2))
            writer.kill()
        store = BlockStore(tmp_path, 40 * RECORD)
        assert count_right_blocks(store) > 0
        assert store.stats().corrupt == 0
        assert not list((tmp_path / "tmp").iterdir())
        for _ in range(256):
            store.maintain()
        assert store.stats().num_bytes == record_bytes(tmp_path) <= 41 * RECORD
        store.close()


def test_processes_share_a_directory_and_its_capacity(tmp_path):
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(started("work", tmp_path, 40 * RECORD, seed, 700))
            for seed in range(3)
        ]
        store = BlockStore(tmp_path, 40 * RECORD)
        while any(worker.poll() is None for worker in workers):
            count_right_blocks(store)
            assert record_bytes(tmp_path) <= 43 * RECORD  # one block a process may be in flight
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert store.stats().corrupt == 0
    for _ in range(256):
        store.maintain()
    assert store.stats().num_bytes == record_bytes(tmp_path)
    store.close()


def test_a_living_writers_temporary_file_is_left_alone(tmp_path):
    with started("work", tmp_path, 40 * RECORD, 5, 300) as writer:
        while writer.poll() is None:
            BlockStore(tmp_path, 40 * RECORD).close()
    assert writer.returncode == 0


def test_a_full_disk_is_a_failed_put_and_leaves_no_litter(tmp_path):
    with started("full", tmp_path) as writer:
        assert writer.wait(30) == 0
    assert not list((tmp_path / "tmp").iterdir())
