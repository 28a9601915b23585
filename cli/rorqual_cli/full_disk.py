"""NATS after a full disk: a stream that could not be written once is written no more, however much
room there is later, until the server starts anew. Here it is started anew by itself."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from rorqual_cli.processes import ManagedProcess

CHECK_S = 0.5
ROOM_BYTES = 32 << 20
"""Free again, before it is worth a start: less would be gone at once."""
_FAILURES = (b"no space left on device", b"disk quota exceeded")
_MAX_READ_BYTES = 1 << 20


class FailedWrites:
    """Looks for failed writes in what a log has grown by; only there does nats-server tell them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at_bytes = 0

    def new(self) -> bool:
        """Whether there were any since the last look."""
        try:
            size_bytes = self._path.stat().st_size
            if size_bytes < self._at_bytes:  # put aside, and begun again
                self._at_bytes = 0
            start_bytes = max(self._at_bytes, size_bytes - _MAX_READ_BYTES)
            with self._path.open("rb") as log:
                log.seek(start_bytes)
                text = log.read(size_bytes - start_bytes)
        except OSError:
            return False
        self._at_bytes = size_bytes
        return any(failure in text for failure in _FAILURES)


async def start_anew_after_full_disk(
    nats: ManagedProcess, directory: Path, say: Callable[[str], None]
) -> None:
    """For ever: end NATS when it could not write in `directory` and there is room again. Whoever
    supervises it starts it; what it had stored is still there."""
    failed = FailedWrites(nats.spec.log_path)
    is_broken = False
    while True:
        await asyncio.sleep(CHECK_S)
        is_broken |= failed.new()
        if is_broken and nats.is_running and shutil.disk_usage(directory).free >= ROOM_BYTES:
            say("nats had no room for its queue, and takes nothing more until it starts anew")
            nats.send_signal(signal.SIGKILL)
            await asyncio.sleep(CHECK_S)
            failed.new()  # its last words
            is_broken = False
