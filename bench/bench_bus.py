"""The control plane's share of a request's latency: request/reply and work queue over a real
broker, tracing on. The answering service is a process of its own, as in the fleet; and the same
over a broker that asks who everybody is, turn by turn."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop
from rorqual_proto.v1 import prefill_pb2, router_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.identities.issue import NATS_AUTHORIZATION, issue
from rorqual_runtime.queue import WorkQueue
from rorqual_runtime.settings import RuntimeSettings

from bench.report import at_most, emit
from tests.support.servers import nats_server

NUM_REQUESTS, NUM_JOBS = 2000, 500
NUM_TURNS, NUM_TURN_REQUESTS = 10, 200
JOBS = subjects.prefill_jobs("default", "lt16k")


@asynccontextmanager
async def answering_process(settings: RuntimeSettings) -> AsyncIterator[None]:
    """A service that answers `router_place()` at once."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.probe_service", "serve"),
        env=os.environ
        | {"RORQUAL_NATS_URL": settings.nats_url, "RORQUAL_HOME": str(settings.home)}
        | {"RORQUAL_SHM_BYTES": str(8 << 20), "RORQUAL_LOG_LEVEL": "error"}
        | {"RORQUAL_LOAD_REPORT_INTERVAL_S": "60"}  # which the probe has no right to
        | ({"RORQUAL_SECRETS_DIR": str(settings.secrets_dir)} if settings.secrets_dir else {}),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        await asyncio.wait_for(process.stdout.readline(), 30)
        yield
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)


async def request_times_s(bus: Bus, num_requests: int) -> list[float]:
    request = router_pb2.PlaceRequest(request_id="bench", num_context_tokens=0)
    times_s = []
    for _ in range(num_requests):
        began_s = time.perf_counter()
        await bus.request(subjects.router_place(), request, router_pb2.PlaceReply, timeout_s=5)
        times_s.append(time.perf_counter() - began_s)
    return times_s


async def queue_times_s(publisher: Bus, worker: Bus, num_jobs: int) -> list[float]:
    """Publish to job in hand, the worker waiting for it."""
    queue = WorkQueue(publisher)
    await queue.ensure()
    consumer = await WorkQueue(worker).consumer(JOBS, "bench")
    times_s = []
    for i in range(num_jobs):
        pulling = asyncio.create_task(consumer.pull(4, 5))
        await asyncio.sleep(0.002)
        job = prefill_pb2.PrefillJob(kv_lease_id="x" * 256)
        began_s = time.perf_counter()
        publishing = asyncio.create_task(queue.publish(JOBS, job, msg_id=f"bench/{i}"))
        (leased,) = await pulling
        times_s.append(time.perf_counter() - began_s)
        await publishing
        await leased.ack()
    return times_s


async def guard_ratios(directory: Path, plain: Bus) -> list[float]:
    """Of each turn, the median with identities over that without."""
    secrets = directory / "secrets"
    issue(secrets)
    config = ["-c", str(secrets / NATS_AUTHORIZATION)]
    async with nats_server(directory / "guarded", extra_args=config) as server:

        def settings(identity: str) -> RuntimeSettings:
            return RuntimeSettings(
                nats_url=server.url, home=directory / "home", secrets_dir=secrets / identity
            )

        guarded = await Bus.connect(settings("prefill"), "prefill")
        async with answering_process(settings("router")):
            await request_times_s(guarded, NUM_TURN_REQUESTS)
            ratios = []
            for _ in range(NUM_TURNS):
                without_s = statistics.median(await request_times_s(plain, NUM_TURN_REQUESTS))
                with_s = statistics.median(await request_times_s(guarded, NUM_TURN_REQUESTS))
                ratios.append(with_s / without_s)
        await guarded.close()
    return ratios


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


async def main() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        async with nats_server(Path(directory)) as server:
            settings = RuntimeSettings(nats_url=server.url, home=Path(directory) / "home")
            caller = await Bus.connect(settings, "caller")
            worker = await Bus.connect(settings, "worker")
            async with answering_process(settings):
                await request_times_s(caller, 200)
                asked_s = await request_times_s(caller, NUM_REQUESTS)
                ratios = await guard_ratios(Path(directory), caller)
            queued_s = await queue_times_s(caller, worker, NUM_JOBS)
            await worker.close()
            await caller.close()
    is_cheap = emit(
        "bus_identities_vs_none", statistics.median(ratios), "ratio", goal=1.1, passes=at_most
    )
    return report(asked_s, queued_s) and is_cheap


def report(asked_s: list[float], queued_s: list[float]) -> bool:
    figures = [
        ("bus_request_reply_p50", statistics.median(asked_s), 1.0),
        ("bus_request_reply_p99", percentile(asked_s, 0.99), None),
        ("bus_queue_publish_to_pull_p50", statistics.median(queued_s), 1.0),
        ("bus_queue_publish_to_pull_p99", percentile(queued_s, 0.99), None),
    ]
    met = [
        emit(name, seconds * 1000, "ms", goal=goal_ms, passes=at_most)
        for name, seconds, goal_ms in figures
    ]
    return all(met)


if __name__ == "__main__":
    sys.exit(0 if uvloop.run(main()) else 1)
