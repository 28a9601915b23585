"""Buffers of any kind, hashing while copying, and cancellation that leaves no late writer."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xxhash
from rorqual_runtime.errors import Corrupt
from rorqual_runtime.tensors.copying import (
    INLINE_COPY_BYTES,
    as_bytes_array,
    as_target,
    copy_bytes,
    run_copy,
)


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_every_contiguous_buffer_is_taken_without_a_copy():
    floats = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert as_bytes_array(floats).tobytes() == floats.tobytes()
    assert np.shares_memory(as_bytes_array(floats), floats)
    assert as_bytes_array(b"").nbytes == 0
    assert as_bytes_array(memoryview(floats)).tobytes() == floats.tobytes()
    for strided in (floats[:, ::2], memoryview(b"abcdef")[::2]):
        with pytest.raises(ValueError):
            as_bytes_array(strided)


def test_a_target_must_be_writable_and_of_the_tickets_size():
    with pytest.raises(Corrupt):
        as_target(bytearray(10), 11)
    with pytest.raises(ValueError):
        as_target(b"0123456789", 10)


@pytest.mark.parametrize("size", [0, 1, 1000, (1 << 20) + 1, 3 << 20])
def test_the_hash_is_that_of_all_sources_together(size):
    data = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)
    target = np.zeros(size, np.uint8)
    cut = size // 3
    digest = copy_bytes(target, [data[:cut], data[cut:]], checksum=True)
    assert digest == xxhash.xxh3_64_intdigest(data) and (target == data).all()
    assert copy_bytes(target, [data], checksum=False) == 0


async def test_a_cancelled_copy_has_ended_when_the_caller_hears_of_it(executor):
    started, may_go_on, ended = threading.Event(), threading.Event(), threading.Event()
    undone = []

    def slow_copy() -> str:
        started.set()
        may_go_on.wait(30)
        ended.set()
        return "result"

    task = asyncio.create_task(run_copy(executor, INLINE_COPY_BYTES + 1, slow_copy, undone.append))
    await asyncio.to_thread(started.wait, 30)
    task.cancel()
    await asyncio.sleep(0.02)
    task.cancel()  # an impatient caller must not get its buffer back early either
    await asyncio.sleep(0.02)
    assert not task.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set() and undone == ["result"]


async def test_small_copies_run_at_once_and_errors_come_through(executor):
    here = threading.get_ident()
    assert await run_copy(executor, 10, threading.get_ident) == here
    assert await run_copy(executor, INLINE_COPY_BYTES + 1, threading.get_ident) != here
    with pytest.raises(ZeroDivisionError):
        await run_copy(executor, INLINE_COPY_BYTES + 1, lambda: 1 // 0)
