"""Weights and KV on huge pages: a step reads all of them, and each 4 KiB page costs a look-up."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

HUGE_PAGE_BYTES = 2 << 20
_SMALLEST_BYTES = 16 << 20
"""Larger than the stack of a thread, which would grow by a whole huge page."""
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25


def move_to_huge_pages(device: torch.device) -> int:
    """Move this process's large private memory to huge pages; returns the bytes it covers.

    Call it when weights and cache are in place: what is allocated later stays as it is, because
    short-lived buffers would only pay for the clearing. Blocks, 0.2 s for 800 MB. Does nothing for
    another device than the CPU, and where the platform has no huge pages or refuses them.
    Source: SmolLM2-135M in bf16 on two cores, decode step of 32 sequences 27.5 -> 25.4 ms.
    """
    if device.type != "cpu" or sys.platform != "linux":
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    covered = 0
    for start, end in list(large_mappings(Path("/proc/self/maps").read_text().splitlines())):
        if madvise(start, end - start, _MADV_HUGEPAGE) == 0:
            madvise(start, end - start, _MADV_COLLAPSE)  # now, where Linux is 6.1 or newer
            covered += end - start
    return covered


def large_mappings(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """(start, end) of the whole huge pages in large private anonymous writable memory.

    lines: in the format of /proc/self/maps.
    """
    for line in lines:
        addresses, mode, _, _, inode, *name = line.split(maxsplit=5)
        if mode != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        low, high = (int(part, 16) for part in addresses.split("-"))
        start = -(-low // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        end = high // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if end - start >= _SMALLEST_BYTES:
            yield start, end
