"""Real NATS and Redis servers for tests: each with its own free port and store directory."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from redis.asyncio import Redis
from rorqual_cli.servers import free_port, nats_binary, redis_binary

START_TIMEOUT_S = 60.0
_CLUSTER_SLOTS = 16_384
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
async def nats_cluster(directory: Path, num_nodes: int = 3) -> AsyncIterator[list[NatsServer]]:
    """NATS servers that know each other. JetStream may take a moment more to have a leader."""
    routes = [f"nats://127.0.0.1:{free_port()}" for _ in range(num_nodes)]
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                nats_server(
                    directory / f"node-{number}",
                    extra_args=[
                        *("--name", f"node-{number}", "--cluster_name", "test"),
                        *("--cluster", route, "--routes", ",".join(routes)),
                    ],
                )
            )
            for number, route in enumerate(routes)
        ]


@asynccontextmanager
async def redis_server(
    directory: Path, *, extra_args: Sequence[str] = ()
) -> AsyncIterator[RedisServer]:
    """A Redis server that keeps nothing on disk unless told to."""
    port, home = free_port(), directory / "redis"
    home.mkdir(parents=True, exist_ok=True)
    command = [redis_binary(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(home)]
    command += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
    async with _running(RedisServer([*command, *extra_args], port, home)) as server:
        yield server


@asynccontextmanager
async def redis_cluster(directory: Path, num_nodes: int = 3) -> AsyncIterator[str]:
    """A Redis Cluster of masters only; its `redis+cluster` URL."""
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                redis_server(directory / f"node-{number}", extra_args=["--cluster-enabled", "yes"])
            )
            for number in range(num_nodes)
        ]
        clients = [_client(node) for node in nodes]
        for client in clients:
            stack.push_async_callback(client.aclose)
        share = -(-_CLUSTER_SLOTS // num_nodes)
        for number, client in enumerate(clients):
            slots = range(number * share, min((number + 1) * share, _CLUSTER_SLOTS))
            await client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            await client.execute_command("CLUSTER", "ADDSLOTS", *slots)
            await client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        async with asyncio.timeout(START_TIMEOUT_S):
            while not all([await _is_joined(client, num_nodes) for client in clients]):
                await asyncio.sleep(0.05)
        yield "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


@asynccontextmanager
async def redis_sentinel(directory: Path) -> AsyncIterator[str]:
    """A Redis server and a Sentinel that knows it; their `redis+sentinel` URL."""
    async with redis_server(directory) as master:
        port, home = free_port(), directory / "sentinel"
        home.mkdir(parents=True)
        config = home / "sentinel.conf"
        config.write_text(f"port {port}\nsentinel monitor main 127.0.0.1 {master.port} 1\n")
        command = [redis_binary(), str(config), "--sentinel"]
        async with _running(RedisServer(command, port, home)):
            yield f"redis+sentinel://127.0.0.1:{port}/main/0"


def _client(node: RedisServer) -> Redis:
    return Redis(host="127.0.0.1", port=node.port, decode_responses=True)


async def _is_joined(client: Redis, num_nodes: int) -> bool:
    """Whether a node sees all of them and all slots."""
    told = str(await client.execute_command("CLUSTER", "INFO"))
    return "cluster_state:ok" in told and f"cluster_known_nodes:{num_nodes}" in told


@asynccontextmanager
async def _running(server: S) -> AsyncIterator[S]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
