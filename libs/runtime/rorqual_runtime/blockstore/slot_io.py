"""Reading and writing the records of a segment, one or many side by side.

Records move past the page cache (O_DIRECT): their bytes are not needed twice, and the kernel would
copy them once more. It moves page-aligned memory itself; what is not goes through a buffer that is.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from rorqual_runtime.blockstore.record import PAGE_BYTES, BadRecord

IoMode = Literal["direct", "buffered"]


class SlotFile(Protocol):
    """The data file of one segment, open. Offsets are multiples of PAGE_BYTES.

    A record is a page for its header, then the payload. Safe for threads.
    """

    def read(self, offset: int, payload: memoryview) -> bytes:
        """Fill payload; returns the header's bytes.

        Raises: BadRecord when the file ends before it, OSError.
        """
        ...

    def write(self, offset: int, header: bytes, payload: memoryview) -> None:
        """Raises: OSError, also when only a part could be written."""
        ...


@dataclass(slots=True)
class Move:
    """One record to be read or written, and what came of it."""

    tag: int
    """The caller's own name for it."""
    file: SlotFile
    offset: int
    payload: memoryview
    """To be filled, or to be written; nobody else may touch it meanwhile."""
    header: bytes = b""
    """Of a write; of a read once it is done."""
    error: OSError | BadRecord | None = field(default=None, init=False)
    """Why it could not be done."""

    def read(self) -> None:
        """Do it now."""
        try:
            self.header = self.file.read(self.offset, self.payload)
        except (OSError, BadRecord) as error:
            self.error = error.with_traceback(None)  # it leads to this move: a cycle

    def write(self) -> None:
        """Do it now."""
        try:
            self.file.write(self.offset, self.header, self.payload)
        except OSError as error:
            self.error = error.with_traceback(None)  # it leads to this move: a cycle


Moves = Generator[Move, None, None]
"""Those that are done. Closed early, it returns when nothing is under way any more."""


class SlotIo(Protocol):
    """How a store reaches the data files of its segments. Safe for threads."""

    def create(self, path: Path, num_bytes: int) -> None:
        """A new file with its space set aside. Raises: OSError, leaving no file."""
        ...

    def open(self, path: Path) -> SlotFile:
        """Raises: OSError."""
        ...

    def read_each(self, moves: Iterator[Move], count: int) -> Moves:
        """Do at most count moves, taken as there is room for them; yields each once it is done."""
        ...

    def write_each(self, moves: Iterator[Move], count: int) -> Moves:
        """As `read_each`."""
        ...

    def close(self) -> None: ...


class AlignedMemory:
    """A run of zeroed pages of our own."""

    def __init__(self, num_bytes: int) -> None:
        self.view = memoryview(page_memory(pages_of(num_bytes)))
        self.address = address_of(self.view)


def page_memory(num_bytes: int) -> mmap.mmap:
    """Zeroed memory that begins a page, in huge pages where there are some to be had: a disk moves
    such memory in few large pieces. Source: reads of 112 KiB blocks on a virtual disk, 54 us each
    into small pages and 22 us into huge ones."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if (advice := getattr(mmap, "MADV_HUGEPAGE", None)) is not None:
        with contextlib.suppress(OSError):  # a kernel without
            memory.madvise(advice)
    return memory


def pages_of(num_bytes: int) -> int:
    """num_bytes rounded up to whole pages."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


def address_of(buffer: memoryview) -> int:
    """Where its bytes are, of which it must have one."""
    if not buffer.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


def copy_bytes(source: memoryview, target: memoryview) -> None:
    """Copy between buffers of one size; other threads run meanwhile."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
