"""A small disk of its own for a fleet, that can be full."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Disk:
    """Where a fleet lives. can_fill: whether it is one of its own."""

    def __init__(self, path: Path, num_bytes: int, *, can_fill: bool) -> None:
        self.path = path
        self.can_fill = can_fill
        self._num_bytes = num_bytes

    def fill(self) -> None:
        """From now on there is room for nothing more."""
        stat = os.statvfs(self.path)
        _mount(self.path, "remount", (stat.f_blocks - stat.f_bfree) * stat.f_frsize)

    def free(self) -> None:
        """As much room as at first."""
        _mount(self.path, "remount", self._num_bytes)


@contextmanager
def open_disk(num_bytes: int) -> Iterator[Disk]:
    """A tmpfs of that size; where none may be mounted, a folder."""
    with tempfile.TemporaryDirectory(prefix="rorqual-chaos-") as folder:
        path = Path(folder)
        is_mounted = os.geteuid() == 0 and _mount(path, "mode=0700", num_bytes)
        try:
            yield Disk(path, num_bytes, can_fill=is_mounted)
        finally:
            if is_mounted:  # lazily: a process that is just ending may still hold a file
                subprocess.run(["umount", "-l", folder], capture_output=True, check=False)


def _mount(path: Path, option: str, num_bytes: int) -> bool:
    """Whether it could be done."""
    options = f"{option},size={num_bytes}"
    command = ["mount", "-t", "tmpfs", "-o", options, "rorqual-chaos", str(path)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
