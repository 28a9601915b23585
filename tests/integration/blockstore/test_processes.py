"""One directory, several processes, some of which are killed: a hit is right or it is a miss."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from rorqual_runtime.blockstore import BlockStore

from tests.support.blocks import SLOT, block, data_files, got, open_store
from tests.support.blockstore_process import NUM_KEYS


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
    found = [(number, got(store, number)) for number in range(NUM_KEYS)]
    assert all(data == block(number) for number, data in found if data is not None)
    return sum(data is not None for _, data in found)


def allocated_bytes(directory) -> int:
    total = 0
    for path in data_files(directory):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_a_writer_killed_in_any_write_leaves_no_wrong_block(tmp_path):
    with started("be-killed", tmp_path, 40 * SLOT, 1, 100) as killer:
        assert killer.wait(100) == 0
    store = open_store(tmp_path, 40 * SLOT)
    assert count_right_blocks(store) > 10
    assert allocated_bytes(tmp_path) <= 40 * SLOT
    store.close()


def test_processes_share_a_directory_and_its_capacity(tmp_path):
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(started("work", tmp_path, 40 * SLOT, seed, 700))
            for seed in range(3)
        ]
        for worker in workers:
            assert worker.stdout is not None and worker.stdout.readline()
        store = open_store(tmp_path, 40 * SLOT)
        while any(worker.poll() is None for worker in workers):
            count_right_blocks(store)
            store.maintain()
            assert allocated_bytes(tmp_path) <= 40 * SLOT
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert store.stats().corrupt == 0
    assert count_right_blocks(store) > 10
    store.close()


def test_a_full_disk_is_a_failed_put_and_leaves_no_litter(tmp_path):
    with started("full", tmp_path) as writer:
        assert writer.wait(60) == 0
    assert len(data_files(tmp_path)) == 1
    assert not list(tmp_path.rglob("*.new"))
