"""A prefill queue that several NATS servers keep outlives one of them."""

from __future__ import annotations

from pathlib import Path

from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import ServingError
from rorqual_runtime.queue import WorkQueue
from rorqual_runtime.settings import RuntimeSettings

from tests.support.bus import JOBS, put_job
from tests.support.servers import nats_cluster
from tests.support.waiting import WAIT_S, until


async def test_jobs_are_there_after_a_server_of_the_cluster_has_died(tmp_path: Path) -> None:
    async with nats_cluster(tmp_path) as servers:
        settings = RuntimeSettings(nats_url=",".join(server.url for server in servers))
        bus = await Bus.connect(settings, "caller")
        try:
            queue = WorkQueue(bus, num_replicas=3)

            async def is_queued() -> bool:
                try:
                    await queue.ensure()
                    await put_job(queue, "a")
                except ServingError:  # no leader yet
                    return False
                return True

            await until(is_queued, "a leader of the queue")
            consumer = await queue.consumer(JOBS, "lt16k")
            used = bus.client.connected_url
            assert used is not None
            (theirs,) = (server for server in servers if server.port == used.port)
            await theirs.kill()
            (job,) = await consumer.pull(1, WAIT_S)
            async with job:
                await job.ack()
            await consumer.close()
        finally:
            await bus.close()
