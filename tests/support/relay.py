"""A TCP relay in front of a broker: a connection whose bytes a test can hold back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

CHUNK_BYTES = 64 << 10
PING = b"PING\r\n"


@dataclass
class Relay:
    """Forwards both ways. While `holds_after_ping`, what a client sends behind a PING waits for
    `released`: the broker answers the PING having read nothing of it."""

    url: str
    holds_after_ping: bool = False
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From one end to the other until either closes."""
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while chunk := await reader.read(CHUNK_BYTES):
                head, ping, tail = chunk.partition(PING)
                writer.write(head + ping)
                await writer.drain()
                if ping and self.holds_after_ping:
                    await self.released.wait()
                writer.write(tail)
                await writer.drain()


@asynccontextmanager
async def relay_to(port: int) -> AsyncIterator[Relay]:
    """A relay to 127.0.0.1:port, for as long as the block runs."""
    relay = Relay(url="")
    running: set[asyncio.Task[None]] = set()

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        for ends in ((reader, far_writer), (far_reader, writer)):
            running.add(asyncio.create_task(relay.forward(*ends)))

    server = await asyncio.start_server(on_client, "127.0.0.1", 0)
    relay.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next round of the loop
