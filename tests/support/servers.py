"""Real NATS and Redis servers for tests: each with its own free port and store directory."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rorqual_cli.servers import free_port, nats_binary, redis_binary

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0

S = TypeVar("S", bound="ServerProcess")


@dataclass
class ServerProcess:
    """A server that can be killed and started again on the same port with the same store."""

    command: Sequence[str]
    port: int
    directory: Path
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server is not running"
        return self.process.pid

    async def start(self) -> None:
        """Return once the port accepts connections.

        Raises: RuntimeError with the end of the server's log when it does not.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await self._accepts():
                    if self.process.returncode is not None:
                        raise RuntimeError(f"server died at start: {self._log_tail()}")
                    await asyncio.sleep(0.02)
        except TimeoutError:
            await self.kill()
            raise RuntimeError(f"server did not start: {self._log_tail()}") from None

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if that takes too long. Does nothing when it is not running."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL, as a crash would."""
        await self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """Kill and start again: same port, same store."""
        await self.kill()
        await self.start()

    def pause(self) -> None:
        """SIGSTOP: alive, but answers nothing. Returns once every thread has stopped."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        until_s = time.monotonic() + STOP_TIMEOUT_S
        while not self._is_stopped() and time.monotonic() < until_s:
            time.sleep(0.001)

    def _is_stopped(self) -> bool:
        stats = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(") ")[2].startswith("T") for stat in stats)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    async def _end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True

    def _log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-800:]


class NatsServer(ServerProcess):
    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"


class RedisServer(ServerProcess):
    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


@asynccontextmanager
async def nats_server(
    directory: Path, *, extra_args: Sequence[str] = ()
) -> AsyncIterator[NatsServer]:
    """A NATS server with JetStream, its store below `directory`."""
    port, home = free_port(), directory / "nats"
    command = [nats_binary(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(home)]
    async with _running(NatsServer([*command, *extra_args], port, home)) as server:
        yield server


@asynccontextmanager
async def redis_server(directory: Path) -> AsyncIterator[RedisServer]:
    """A Redis server that keeps nothing on disk unless told to."""
    port, home = free_port(), directory / "redis"
    home.mkdir(parents=True, exist_ok=True)
    command = [redis_binary(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(home)]
    command += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
    async with _running(RedisServer(command, port, home)) as server:
        yield server


@asynccontextmanager
async def _running(server: S) -> AsyncIterator[S]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
