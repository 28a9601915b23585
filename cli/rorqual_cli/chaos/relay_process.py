"""Relays in a process of their own: clients that are busy there would slow down what passes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from rorqual_cli.chaos.relay import open_relay
from rorqual_cli.processes import end_with_parent

_FREEZE = "freeze"
_END_S = 10.0


class FarRelay:
    """One relay of that process, at `port`."""

    def __init__(self, number: int, port: int, orders: asyncio.StreamWriter) -> None:
        self._number = number
        self._orders = orders
        self.port = port

    def lead_to(self, target_port: int) -> None:
        """Where new connections go."""
        self._tell(str(target_port))

    def freeze(self) -> None:
        """From now on nothing passes on the connections there are; new ones work."""
        self._tell(_FREEZE)

    def _tell(self, what: str) -> None:
        self._orders.write(f"{self._number} {what}\n".encode())


@asynccontextmanager
async def open_relays(count: int) -> AsyncIterator[list[FarRelay]]:
    """So many, for as long as the block runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(count)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        ports = json.loads(await process.stdout.readline())
        yield [FarRelay(number, port, process.stdin) for number, port in enumerate(ports)]
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _END_S)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _relay_until_told(count: int) -> None:
    """Do what the lines of standard input say, until there are no more."""
    orders = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(orders)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    async with AsyncExitStack() as stack:
        relays = [await stack.enter_async_context(open_relay()) for _ in range(count)]
        print(json.dumps([relay.port for relay in relays]), flush=True)
        while line := (await orders.readline()).decode().split():
            number, what = line
            if what == _FREEZE:
                relays[int(number)].freeze()
            else:
                relays[int(number)].target_port = int(what)


if __name__ == "__main__":
    asyncio.run(_relay_until_told(int(sys.argv[1])))
