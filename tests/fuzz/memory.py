"""What fuzzed processes hold."""

from __future__ import annotations

from pathlib import Path

MAX_GROWTH_BYTES = 32 << 20
_PAGE_BYTES = 4096


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
