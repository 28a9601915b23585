"""Processes that work on a block store until they are killed or done: see `work`."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from rorqual_runtime.blockstore.uring import Uring

from tests.support.blocks import FINGERPRINT, SIZE, block, got, key_of, open_store, put

NUM_KEYS = 60


def work(directory: Path, capacity_bytes: int, seed: int, num_steps: int) -> int:
    """Put, get and delete at random, verifying every hit. Returns the number of wrong ones."""
    store = open_store(directory, capacity_bytes)
    dice = random.Random(seed)
    num_wrong = 0
    print("ready", flush=True)
    for step in range(num_steps):
        number, chance = dice.randrange(NUM_KEYS), dice.random()
        if chance < 0.3:
            put(store, number)
        elif chance < 0.6:
            numbers = dice.sample(range(NUM_KEYS), 4)
            store.put_many(FINGERPRINT, [(key_of(n), block(n)) for n in numbers])
        elif chance < 0.7:
            store.delete(FINGERPRINT, key_of(number))
        else:
            num_wrong += got(store, number) not in (None, block(number))
        if step % 100 == 99:
            store.maintain()
    num_wrong += store.stats().corrupt
    store.close()
    return num_wrong


def be_killed(directory: Path, capacity_bytes: int, seed: int, num_kills: int) -> int:
    """Writers that are killed in the middle of a random write each. Returns how often a reader
    found wrong bytes afterwards, or could not go on writing."""
    dice = random.Random(seed)
    num_wrong = 0
    for _ in range(num_kills):
        num_before, share, child_seed = dice.randrange(200), dice.random(), dice.randrange(1 << 30)
        child = os.fork()
        if child == 0:
            _die_in_write(num_before, share)
            work(directory, capacity_bytes, child_seed, 1_000_000)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        store = open_store(directory, capacity_bytes)
        for number in range(NUM_KEYS):
            num_wrong += got(store, number) not in (None, block(number))
        number = dice.randrange(NUM_KEYS)
        num_wrong += not (put(store, number) and got(store, number) == block(number))
        store.close()
    return num_wrong


def write_on_a_full_disk(directory: Path) -> int:
    """The disk takes no further segment."""
    store = open_store(directory, 1 << 30)
    assert put(store, 1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, SIZE))
    assert not store.put(FINGERPRINT, key_of(2), bytes(SIZE * 4))
    assert store.stats().put_failures == 1
    assert got(store, 1) == block(1)
    return 0


def _die_in_write(num_before: int, share: float) -> None:
    """End this process by SIGKILL in the write after num_before others, with a share of it done; in
    a batch, as soon as it is under way."""
    left = [num_before]

    def dying(call: Callable[..., int]) -> Callable[..., int]:
        def write(fd: int, data: object, offset: int) -> int:
            if left[0] == 0:
                parts = data if isinstance(data, list) else [data]
                raw = b"".join(bytes(part) for part in parts)
                out = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
                write_some(out, raw[: int(len(raw) * share)], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(fd, data, offset)

        return write

    def enter(ring: Uring, num_wanted: int) -> list[tuple[int, int]]:
        if left[0] == 0:
            start(ring, 0)
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return start(ring, num_wanted)

    start, Uring.enter = Uring.enter, enter  # type: ignore[method-assign]
    write_some = os.pwrite
    os.pwrite, os.pwritev = dying(os.pwrite), dying(os.pwritev)  # type: ignore[assignment]


if __name__ == "__main__":
    tasks: dict[str, Callable[..., int]] = {
        "work": work,
        "be-killed": be_killed,
        "full": write_on_a_full_disk,
    }
    numbers = [int(text) for text in sys.argv[3:]]
    sys.exit(tasks[sys.argv[1]](Path(sys.argv[2]), *numbers) > 0)
