"""The queue's depth is the stream's, plus what went there since it was read."""

import asyncio

from rorqual_router.queue_gauge import QueueGauge
from rorqual_runtime.errors import Unavailable


async def test_own_jobs_count_until_the_stream_shows_them():
    depth = 5
    entered, release = asyncio.Event(), asyncio.Event()

    async def read() -> int:
        entered.set()
        await release.wait()
        return depth

    gauge = QueueGauge(read, 1.0)
    gauge.add(2)
    reading = asyncio.create_task(gauge.refresh())
    await entered.wait()
    gauge.add(1)
    release.set()
    await reading
    assert gauge.num_jobs == 6


async def test_the_last_depth_stays_while_the_stream_can_not_be_read():
    answers = [4]

    async def read() -> int:
        if not answers:
            raise Unavailable()
        return answers.pop()

    gauge = QueueGauge(read, 1.0)
    await gauge.refresh()
    gauge.add(1)
    await gauge.refresh()
    assert gauge.num_jobs == 5
