"""A process that works on a block store until it is killed or done: see `work`."""

from __future__ import annotations

import random
import resource
import signal
import sys
from pathlib import Path

from rorqual_runtime.blockstore import BlockStore

SIZE = 200_000
NUM_KEYS = 60
FINGERPRINT = "model"


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def block(number: int, size: int = SIZE) -> bytes:
    """What belongs under the key: known to every process."""
    return random.Random(number).randbytes(size)


def work(directory: Path, capacity_bytes: int, seed: int, num_steps: int) -> int:
    """Put, get and delete at random, verifying every hit. Returns the number of wrong ones."""
    store = BlockStore(directory, capacity_bytes)
    dice = random.Random(seed)
    into = bytearray(SIZE)
    num_wrong = 0
    print("ready", flush=True)
    for _ in range(num_steps):
        number, chance = dice.randrange(NUM_KEYS), dice.random()
        if chance < 0.6:
            store.put(FINGERPRINT, key_of(number), block(number))
        elif chance < 0.7:
            store.delete(FINGERPRINT, key_of(number))
        elif store.get(FINGERPRINT, key_of(number), into):
            num_wrong += bytes(into) != block(number)
    num_wrong += store.stats().corrupt
    store.close()
    return num_wrong


def write_on_a_full_disk(directory: Path) -> None:
    """Every write fails half-way, as on a full disk."""
    store = BlockStore(directory, 1 << 30)
    store.put(FINGERPRINT, key_of(1), block(1))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, SIZE // 2))
    kept = [store.put(FINGERPRINT, key_of(number), block(number)) for number in range(2, 6)]
    into = bytearray(SIZE)
    assert store.get(FINGERPRINT, key_of(1), into) and bytes(into) == block(1)
    assert not any(kept) and store.stats().put_failures == 4
    assert store.put(FINGERPRINT, key_of(9), block(9, SIZE // 4))


if __name__ == "__main__":
    if sys.argv[1] == "full":
        write_on_a_full_disk(Path(sys.argv[2]))
    else:
        sys.exit(work(Path(sys.argv[2]), *(int(text) for text in sys.argv[3:])) > 0)
