"""`python -m tests.fuzz.over_http [--bodies N] [--seed N] [endpoint ...]`: the same bodies by HTTP.

A gateway and a recipe run as processes of their own, router and decode are played. Every answer
has to be whole and no 5xx, in time; no process may keep memory. Prints one line an endpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rorqual_cli.servers import free_port
from rorqual_proto.v1 import decode_pb2, generation_pb2
from rorqual_runtime.settings import RuntimeSettings

from tests.fuzz.bodies import ENDPOINTS
from tests.fuzz.http_client import PATHS, Answer, Connection
from tests.fuzz.memory import MAX_GROWTH_BYTES, resident_bytes
from tests.fuzz.mutate import mutated
from tests.fuzz.resources import ENDPOINT as STORED_RESPONSES
from tests.fuzz.resources import StoredResponses
from tests.support.chat_model_dir import make_chat_model_dir
from tests.support.servers import nats_server, redis_server
from tests.support.service_process import service_process
from tests.support.stub_backend import Playback, StubBackend, stub_backend

NUM_CONNECTIONS = 6
MAX_ANSWER_S = 60.0
_MEGABYTE = 1 << 20
_ANSWERS = ([[300, 301], [302], [5, 6]], [[40], [60, 61, 62, 300, 5]], [[200, 201, 202]] * 3)
_FINISHES = (decode_pb2.FINISH_REASON_STOP, decode_pb2.FINISH_REASON_LENGTH)


class Fuzzed(Exception):
    """A request that did what none may do."""


@dataclass
class Fleet:
    """What is fuzzed. pids: of the processes whose memory counts."""

    port: int
    pids: dict[str, int]
    backend: StubBackend

    def resident_bytes(self) -> dict[str, int]:
        """Memory by service."""
        return {name: resident_bytes(pid) for name, pid in self.pids.items()}


@dataclass
class Run:
    """One endpoint's requests, shared by all connections."""

    fleet: Fleet
    endpoint: str
    num_bodies: int
    seed: int
    statuses: Counter[int] = field(default_factory=Counter)
    warm: dict[str, int] = field(default_factory=dict)
    stored: StoredResponses = field(default_factory=StoredResponses)

    async def finish(self) -> None:
        """Send them all. Raises: Fuzzed with what is needed to see it again."""
        numbers = iter(range(self.num_bodies))
        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_CONNECTIONS):
                group.create_task(self._send_some(numbers))
        growth = {name: now - self.warm[name] for name, now in self.fleet.resident_bytes().items()}
        if max(growth.values()) > MAX_GROWTH_BYTES:
            raise Fuzzed(f"{self.endpoint}: memory grew: {growth}")

    async def _send_some(self, numbers: Iterator[int]) -> None:
        async with Connection(self.fleet.port) as connection:
            for number in numbers:
                await self._send_one(connection, number)
                if number == self.num_bodies // 5:
                    self.warm = self.fleet.resident_bytes()

    async def _send_one(self, connection: Connection, number: int) -> None:
        where = f"{self.endpoint} {self.seed}/{number}"
        chance = random.Random(f"{self.endpoint}/{self.seed}/{number}")
        started_s = time.monotonic()
        try:
            answer = await self._answer(connection, chance)
            is_whole = answer.is_whole
        except Exception as err:
            raise Fuzzed(f"{where}: {err!r}") from err
        took_s = time.monotonic() - started_s
        if answer.status >= 500 or not is_whole or took_s > MAX_ANSWER_S:
            raise Fuzzed(f"{where}: {answer.status} in {took_s:.1f} s: {answer.body[-500:]!r}")
        self.statuses[answer.status] += 1
        self.fleet.backend.forget()

    async def _answer(self, connection: Connection, chance: random.Random) -> Answer:
        if self.endpoint == STORED_RESPONSES:
            return await self.stored.send(chance, connection.send)
        body = mutated(ENDPOINTS[self.endpoint], chance)
        return await connection.send("POST", PATHS[self.endpoint], body)


@asynccontextmanager
async def running_fleet(
    directory: Path, *, gateway_env: Mapping[str, str] | None = None
) -> AsyncIterator[Fleet]:
    """Servers, services and the stub. gateway_env: more settings of the gateway."""
    port = free_port()
    model_dir = make_chat_model_dir(directory / "model")
    async with (
        nats_server(directory) as nats,
        redis_server(directory) as redis,
        stub_backend(RuntimeSettings(nats_url=nats.url, home=directory / "stub"), _play) as backend,
    ):
        where = {"nats_url": nats.url, "home": directory / "home"}
        recipe = service_process(
            "recipe",
            backend.bus,
            **where,
            env={
                "RORQUAL_MODEL_DIR": str(model_dir),
                "RORQUAL_REDIS_URL": redis.url,
                "RORQUAL_RECIPE_TOKEN_CACHE_BYTES": str(_MEGABYTE),
                "RORQUAL_TRACE_SAMPLE_RATIO": "0",
            },
        )
        gateway = service_process(
            "gateway",
            backend.bus,
            **where,
            env={
                "RORQUAL_GATEWAY_PORT": str(port),
                "RORQUAL_TRACE_SAMPLE_RATIO": "0",
                **(gateway_env or {}),
            },
        )
        async with recipe as recipe_process, gateway as gateway_process:
            pids = {
                "gateway": gateway_process.process.pid,
                "recipe": recipe_process.process.pid,
            }
            yield Fleet(port, pids, backend)


def _play(generation: generation_pb2.Generation) -> Playback:
    """Not always the same answer, but the same one for the same prompt."""
    at = generation.num_prompt_tokens
    return Playback(_ANSWERS[at % len(_ANSWERS)], _FINISHES[at % len(_FINISHES)], logprobs=True)


async def fuzz(endpoints: list[str], num_bodies: int, seed: int) -> bool:
    """Whether all endpoints held."""
    held = True
    with tempfile.TemporaryDirectory() as directory:
        async with running_fleet(Path(directory)) as fleet:
            for endpoint in endpoints:
                held &= await _fuzz_one(Run(fleet, endpoint, num_bodies, seed))
    return held


async def _fuzz_one(run: Run) -> bool:
    started_s = time.perf_counter()
    before = run.fleet.resident_bytes()
    try:
        await run.finish()
    except (Fuzzed, ExceptionGroup) as err:
        first = err.exceptions[0] if isinstance(err, ExceptionGroup) else err
        print(f"FAILED {first}", flush=True)
        return False
    counts = ", ".join(f"{count} x {status}" for status, count in sorted(run.statuses.items()))
    after = run.fleet.resident_bytes()
    memory = ", ".join(
        " > ".join([name, *(f"{when[name] >> 20}" for when in (before, run.warm, after))])
        for name in after
    )
    took_s = time.perf_counter() - started_s
    print(f"{run.endpoint}: {counts}; MiB of {memory}; {took_s:.0f} s", flush=True)
    return True


def main() -> int:
    """Run; 1 when a request did what none may do."""
    known = [*PATHS, STORED_RESPONSES]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoints", nargs="*", choices=[[], *known], default=[])
    parser.add_argument("--bodies", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return 1 - asyncio.run(fuzz(options.endpoints or known, options.bodies, options.seed))


if __name__ == "__main__":
    sys.exit(main())
