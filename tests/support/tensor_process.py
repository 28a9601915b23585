"""A tensor plane in a process of its own, driven by JSON lines on its standard streams."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from rorqual_proto.v1 import tensor_pb2
from rorqual_runtime.errors import NoCapacity
from rorqual_runtime.settings import RuntimeSettings
from rorqual_runtime.tensors import TensorPlane
from rorqual_runtime.tensors.segment import remove_dead_segments

from tests.support.waiting import soon

CHURN_SIZES = (1, 100, 4096, 70_000, 70_000, 300_000, 300_000, 1_500_000, 4_500_000)
HOST_ID = "test-host"


def content(seed: int, size: int) -> np.ndarray:
    """The same bytes in every process: size bytes that depend on the seed."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def open_plane(
    name: str,
    *,
    host_id: str = HOST_ID,
    incarnation: int = 1,
    shm_bytes: int = 32 << 20,
    secrets_dir: Path | None = None,
    **more: Any,
):
    identity = {} if secrets_dir is None else {"secrets_dir": secrets_dir}
    settings = RuntimeSettings(shm_bytes=shm_bytes, **identity)
    return TensorPlane.open(settings, name, incarnation, host_id, **more)


class TensorProcess:
    """The test's end of an owner process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @contextlib.asynccontextmanager
    async def started(
        cls,
        name: str = "owner",
        *,
        incarnation: int = 1,
        shm_bytes: int = 32 << 20,
        secrets_dir: Path | None = None,
    ) -> AsyncIterator[Self]:
        identity = {} if secrets_dir is None else {"RORQUAL_SECRETS_DIR": str(secrets_dir)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.tensor_process",
            name, str(incarnation), str(shm_bytes),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 20,
            env={**os.environ, **identity},
        )  # fmt: skip
        owner = cls(process)
        try:
            await owner._reply()
            yield owner
        finally:
            await owner.end()

    async def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        await self._process.stdin.drain()
        return await self._reply()

    async def publish(self, size: int, seed: int = 0, **arguments: Any) -> tensor_pb2.TensorTicket:
        return ticket_from_text(
            (await self.call("publish", size=size, seed=seed, **arguments))["ticket"]
        )

    async def churn(
        self, count: int, seed: int
    ) -> AsyncIterator[tuple[tensor_pb2.TensorTicket, int]]:
        """Tickets of a full arena as they are published, each with the byte its payload is full
        of. Older ones are freed at random to make room; the last one is held at the end."""
        line = await self.call("churn", count=count, seed=seed)
        while "ticket" in line:
            yield ticket_from_text(line["ticket"]), line["tag"]
            line = await self._reply()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def end(self) -> None:
        """Let it close in good order, or clean up behind it when a test has killed it."""
        if self._process.returncode is not None:
            remove_dead_segments()
            return
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.close()
        try:
            await soon(self._process.wait())
        except TimeoutError:
            await self.kill()
            raise

    async def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await soon(self._process.stdout.readline())
        assert line, "the owner process has ended"
        return json.loads(line)


def ticket_from_text(text: str) -> tensor_pb2.TensorTicket:
    return tensor_pb2.TensorTicket.FromString(base64.b64decode(text))


def _text(ticket: tensor_pb2.TensorTicket) -> str:
    return base64.b64encode(ticket.SerializeToString()).decode()


def _say(**reply: Any) -> None:
    print(json.dumps(reply), flush=True)


async def _churn(
    plane: TensorPlane, published: list[tensor_pb2.TensorTicket], count: int, seed: int
) -> None:
    dice = random.Random(seed)
    for number in range(count):
        size, tag = dice.choice(CHURN_SIZES), dice.randrange(256)
        while True:
            try:
                published.append(await plane.publish(np.full(size, tag, np.uint8)))
                break
            except NoCapacity:
                plane.release(published.pop(dice.randrange(len(published))))
        _say(ticket=_text(published[-1]), tag=tag)
        if number % 4 == 0:
            await asyncio.sleep(0.0005)  # let readers in
    _say(done=True)


async def _serve(
    plane: TensorPlane, published: list[tensor_pb2.TensorTicket], request: dict[str, Any]
) -> None:
    op = request.pop("op")
    if op == "publish":
        data = content(request.pop("seed"), request.pop("size"))
        published.append(await plane.publish(data, **request))
        _say(ticket=_text(published[-1]))
    elif op == "reset":
        _say(released=sum(plane.release(published.pop()) for _ in range(len(published))))
    elif op == "release":
        _say(released=plane.release(ticket_from_text(request["ticket"])))
    elif op == "state":
        _say(held=plane.num_held, held_bytes=plane.num_held_bytes, reading=plane.num_reading)
    elif op == "churn":
        await _churn(plane, published, **request)


async def _main(name: str, incarnation: int, shm_bytes: int) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with await open_plane(name, incarnation=incarnation, shm_bytes=shm_bytes) as plane:
        _say(ready=True, pid=os.getpid())
        published: list[tensor_pb2.TensorTicket] = []
        while line := await lines.readline():
            await _serve(plane, published, json.loads(line))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
