"""Open files of a store that several threads use at once."""

from __future__ import annotations

import os
from pathlib import Path


class Descriptor:
    """An open file, closed once nobody holds this object: so no thread can ever use a number that
    means another file by then."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


def open_descriptor(path: Path, flags: int) -> Descriptor:
    """Raises: OSError."""
    return Descriptor(os.open(path, flags | os.O_CLOEXEC))
