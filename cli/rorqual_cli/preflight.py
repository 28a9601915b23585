"""Checks before anything is started, each with its remedy."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from rorqual_cli.problems import CliError, ExitCode

_GB = 1 << 30
MIN_DISK_BYTES = 2 * _GB
MIN_MEMORY_BYTES = 2 * _GB
MIN_SHM_BYTES = _GB // 4
_SHM = Path("/dev/shm")


def check_port(host: str, port: int) -> None:
    """Raises: CliError when the port can't be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CliError(
                f"port {port} on {host} can't be used ({error.strerror})",
                "choose another one: make serve PORT=8080, or rorqual up --port 8080",
                ExitCode.PORT_BUSY,
            ) from error


def check_room(home: Path) -> None:
    """Raises: CliError when disk, memory or shared memory are too small for a fleet."""
    home.mkdir(parents=True, exist_ok=True)
    _need(
        shutil.disk_usage(home).free,
        MIN_DISK_BYTES,
        f"of disk space free in {home}",
        "free some, or use another --home",
    )
    _need(
        available_memory_bytes(),
        MIN_MEMORY_BYTES,
        "of memory available",
        "end other programs, or use a larger machine",
    )
    if _SHM.is_dir():
        _need(
            shutil.disk_usage(_SHM).free,
            MIN_SHM_BYTES,
            f"free in {_SHM}",
            "mount a larger one (in a container: --shm-size=2g)",
        )


def available_memory_bytes() -> int:
    """Memory that new processes can have without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return MIN_MEMORY_BYTES


def _need(have_bytes: int, need_bytes: int, what: str, remedy: str) -> None:
    if have_bytes < need_bytes:
        raise CliError(
            f"{have_bytes / _GB:.1f} GB {what}, a fleet needs {need_bytes / _GB:.2g} GB",
            remedy,
            ExitCode.TOO_LITTLE_ROOM,
        )
