"""Blocks of a 3FS mount go through its zero-copy client: here one with the same interface, which
moves bytes between its shared memory and a plain file."""

import os
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace

import pytest
from rorqual_runtime.blockstore import usrbio
from rorqual_runtime.blockstore.posix_io import PosixIo
from rorqual_runtime.blockstore.usrbio import UsrbioClient, UsrbioIo, choose_io

from tests.support.blocks import SLOT, block, data_files, got, open_store, put


class StandIn(UsrbioClient):
    """The client of a mount at `mount_point`."""

    def __init__(self, mount_point: str) -> None:
        self.mount_point = mount_point
        self.fds: set[int] = set()
        self.num_moved = 0
        self.answers = True

    def register_fd(self, fd):
        assert fd not in self.fds
        self.fds.add(fd)

    def deregister_fd(self, fd):
        self.fds.remove(fd)

    def extract_mount_point(self, path):
        return self.mount_point if path.startswith(self.mount_point) else None

    def make_iovec(self, shm, mount_point):
        assert mount_point == self.mount_point
        return memoryview(shm.buf)

    def make_ioring(self, mount_point, entries, for_read=True):
        return StandInRing(self, for_read)


class StandInRing:
    def __init__(self, client: StandIn, for_read: bool) -> None:
        self.client, self.for_read = client, for_read
        self.prepared = []

    def prepare(self, memory, is_read, fd, offset):
        assert is_read == self.for_read and fd in self.client.fds
        assert offset % 4096 == 0 and memory.nbytes % 4096 == 0
        self.prepared.append((memory, fd, offset))

    def submit(self):
        return self

    def wait(self, min_results, timeout):
        done = [SimpleNamespace(result=self._move(*one)) for one in self.prepared]
        self.prepared = []
        self.client.num_moved += len(done)
        return done if self.client.answers else []

    def _move(self, memory, fd, offset):
        try:
            call = os.preadv if self.for_read else os.pwritev
            return call(fd, [memory], offset)
        except OSError as error:
            return -error.errno


@pytest.fixture
def client(tmp_path, monkeypatch):
    client = StandIn(str(tmp_path))
    monkeypatch.setattr(usrbio, "_installed_client", lambda: client)
    return client


def test_blocks_go_through_the_client_of_the_mount(client, tmp_path):
    store = open_store(tmp_path, 40 * SLOT)
    assert all(put(store, number) for number in range(60))
    num_right = sum(got(store, number) == block(number) for number in range(60))
    assert num_right == store.stats().num_blocks > 30
    assert client.num_moved >= 60 + num_right
    store.close()


def test_a_short_file_is_a_corrupt_block_and_silence_a_miss(client, tmp_path):
    store = open_store(tmp_path, 3200 * SLOT)
    put(store, 1)
    client.answers = False
    assert got(store, 1) is None and not put(store, 2)
    client.answers = True
    assert got(store, 1) == block(1)
    os.truncate(data_files(tmp_path)[0], 5000)
    assert got(store, 1) is None and store.stats().corrupt == 1
    store.close()


@pytest.mark.parametrize("broken", ["register_fd", "make_iovec", "make_ioring"])
def test_a_client_that_fails_leaves_no_shared_memory(client, tmp_path, monkeypatch, broken):
    def fail(*_, **__):
        raise RuntimeError("the mount is gone")

    made = []

    def shared_memory(**options):
        made.append(SharedMemory(**options))
        return made[-1]

    store = open_store(tmp_path, 40 * SLOT)
    monkeypatch.setattr(usrbio, "SharedMemory", shared_memory)
    with monkeypatch.context() as harm:
        harm.setattr(client, broken, fail)
        assert not put(store, 1) and got(store, 1) is None
    assert bool(made) == (broken != "register_fd")
    assert not any(Path("/dev/shm", memory.name).exists() for memory in made)
    assert put(store, 1) and got(store, 1) == block(1)
    store.close()


def test_it_is_used_on_its_mount_only(client, tmp_path, tmp_path_factory):
    assert isinstance(choose_io(tmp_path, "direct", SLOT), UsrbioIo)
    assert isinstance(choose_io(tmp_path_factory.mktemp("other"), "direct", SLOT), PosixIo)
