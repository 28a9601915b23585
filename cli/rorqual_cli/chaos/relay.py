"""A TCP relay whose connections can be made half-open: alive at both ends, and nothing passes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rorqual_cli.servers import HOST

_CHUNK_BYTES = 64 << 10


class Relay:
    """Listens on `port`; forwards to `target_port`, which may be told later."""

    def __init__(self) -> None:
        self.port = 0
        self.target_port = 0
        self._passes = asyncio.Event()
        self._passes.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def freeze(self) -> None:
        """From now on nothing passes on the connections there are; new ones work."""
        self._passes.clear()
        self._passes = asyncio.Event()
        self._passes.set()

    async def on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A new connection: one to the target for it."""
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return
        passes = self._passes
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(_forward(source, sink, passes))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def open_relay() -> AsyncIterator[Relay]:
    """A relay that listens as long as the block runs."""
    relay = Relay()
    server = await asyncio.start_server(relay.on_client, HOST, 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.close()


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event
) -> None:
    """From one end to the other until either closes; what is read while nothing passes is held."""
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while chunk := await reader.read(_CHUNK_BYTES):
            await passes.wait()
            writer.write(chunk)
            await writer.drain()
