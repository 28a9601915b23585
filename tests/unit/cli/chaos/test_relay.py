"""A frozen relay keeps its connections open and lets nothing pass; new connections work."""

from __future__ import annotations

import asyncio

import pytest
from rorqual_cli.chaos.relay import open_relay

from tests.support.waiting import soon


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
    writer.close()


async def test_old_connections_are_half_open_and_new_ones_work() -> None:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server, open_relay() as relay:
        relay.target_port = server.sockets[0].getsockname()[1]
        old_reader, old_writer = await asyncio.open_connection("127.0.0.1", relay.port)
        old_writer.write(b"before\n")
        assert await soon(old_reader.readline()) == b"before\n"
        relay.freeze()
        old_writer.write(b"lost\n")
        new_reader, new_writer = await asyncio.open_connection("127.0.0.1", relay.port)
        new_writer.write(b"after\n")
        assert await soon(new_reader.readline()) == b"after\n"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(old_reader.readline(), 0.05)
        for writer in (old_writer, new_writer):
            writer.close()
