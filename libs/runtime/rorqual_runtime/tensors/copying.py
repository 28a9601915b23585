"""Copies of bulk bytes: which run on the event loop, which in a thread, and how they are hashed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from rorqual_runtime.errors import Corrupt
from rorqual_runtime.waiting import uninterrupted

U8Array = npt.NDArray[np.uint8]
Buffer = bytes | bytearray | memoryview | npt.NDArray[Any]
T = TypeVar("T")

INLINE_COPY_BYTES = 4 << 20
"""Up to this (a KV page of a small model) a copy takes 0.2 ms on the event loop. A thread and back
costs 0.1 ms on an idle machine, and on a busy one two waits for a processor, milliseconds each."""
_HASHED_PIECE_BYTES = 1 << 20  # the hash finds in the cache what the copy left there
_PLAIN_PIECE_BYTES = 32 << 20  # each piece takes the interpreter lock again: few, large ones


def as_bytes_array(buffer: Buffer) -> U8Array:
    """The buffer's memory as [num_bytes] uint8, without a copy.

    Raises: ValueError when it is not contiguous.
    """
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise ValueError("need a C-contiguous array")
        return buffer.reshape(-1).view(np.uint8)
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("need a contiguous buffer")
    return np.frombuffer(view, np.uint8)


def as_sources(buffers: Buffer | Sequence[Buffer]) -> list[U8Array]:
    """One buffer, or several, as bytes without a copy."""
    if isinstance(buffers, bytes | bytearray | memoryview | np.ndarray):
        return [as_bytes_array(buffers)]
    return [as_bytes_array(buffer) for buffer in buffers]


def as_target(into: Buffer, size_bytes: int) -> U8Array:
    """`into` as writable bytes.

    Raises: Corrupt when the ticket's size is not the size the reader has reserved.
    """
    target = as_bytes_array(into)
    if not target.flags.writeable:
        raise ValueError("the target buffer is read-only")
    if target.nbytes != size_bytes:
        raise Corrupt(f"a tensor of {size_bytes} bytes does not fit a buffer of {target.nbytes}")
    return target


def copy_bytes(target: U8Array, sources: Sequence[U8Array], *, checksum: bool) -> int:
    """Fill target with the sources, one after the other. Releases the interpreter lock.

    Returns xxh3_64 of what was copied, or 0 without checksum.
    """
    piece_bytes = _HASHED_PIECE_BYTES if checksum else _PLAIN_PIECE_BYTES
    digest = xxhash.xxh3_64()
    position = 0
    for source in sources:
        for start in range(0, source.nbytes, piece_bytes):
            piece = source[start : start + piece_bytes]
            copied = target[position : position + piece.nbytes]
            np.copyto(copied, piece)
            if checksum:
                digest.update(copied.data)
            position += piece.nbytes
    return digest.intdigest() if checksum else 0


async def run_copy(
    executor: Executor,
    num_bytes: int,
    copy: Callable[[], T],
    undo: Callable[[T], None] | None = None,
) -> T:
    """Run `copy` inline when small, else in a thread.

    If the caller is cancelled, this still waits for the thread (milliseconds): a buffer handed
    to a copy is never written to after the call has ended, so its owner may reuse it at once.
    `undo` then gets the result that nobody will see.
    """
    if num_bytes <= INLINE_COPY_BYTES:
        return copy()
    running = asyncio.get_running_loop().run_in_executor(executor, copy)
    try:
        return await uninterrupted(running)
    except asyncio.CancelledError:
        failed = running.cancelled() or running.exception() is not None
        if undo is not None and not failed:
            undo(running.result())
        raise
