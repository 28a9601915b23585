"""Which memory goes to huge pages, and that it does."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch
from rorqual_engine.huge_pages import HUGE_PAGE_BYTES, large_mappings, move_to_huge_pages

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_large_private_anonymous_memory_counts_in_whole_huge_pages():
    lines = [
        "7f0000001000-7f0004001000 rw-p 00000000 00:00 0 ",
        "560000000000-560002000000 rw-p 00000000 00:00 0                   [heap]",
        "7f1000000000-7f1000801000 rw-p 00000000 00:00 0 ",  # a thread's stack
        "7f2000000000-7f2004000000 r--p 00000000 00:00 0 ",
        "7f3000000000-7f3004000000 rw-s 00000000 00:01 77                 /dev/shm/arena",
        "7f4000000000-7f4004000000 rw-p 00000000 fd:00 99                 /usr/lib/x.so",
        "7ffc00000000-7ffc04000000 rw-p 00000000 00:00 0                  [stack]",
    ]
    assert list(large_mappings(lines)) == [
        (0x7F0000200000, 0x7F0004000000),
        (0x560000000000, 0x560002000000),
    ]


@pytest.mark.skipif(
    not _ENABLED.exists() or "[never]" in _ENABLED.read_text(),
    reason="this kernel has no transparent huge pages",
)
def test_memory_in_use_moves_and_keeps_its_content():
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        content = np.frombuffer(memory, np.uint32)
        content[:] = np.arange(len(content), dtype=np.uint32)
        covered = move_to_huge_pages(torch.device("cpu"))
        assert covered >= (64 << 20) - 2 * HUGE_PAGE_BYTES
        assert _advised(content.ctypes.data)
        assert (content == np.arange(len(content), dtype=np.uint32)).all()
        del content


def test_other_devices_are_left_alone():
    assert move_to_huge_pages(torch.device("meta")) == 0


def _advised(address: int) -> bool:
    """Whether the mapping that holds the address wants huge pages (`hg` in smaps)."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            low, high = (int(part, 16) for part in first.split("-"))
            is_inside = low <= address + HUGE_PAGE_BYTES < high
        elif is_inside and first == "VmFlags:":
            return "hg" in rest
    return False
