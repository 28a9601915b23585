"""The queue's depth is the stream's, plus what went there since it was read."""

import asyncio

from rorqual_router.queue_gauge import QueueGauge
from rorqual_runtime.errors import Unavailable


def publish(gauge, num_jobs, *, is_new=True):
    with gauge.admit(num_jobs) as admitted:
        for _ in range(num_jobs):
            admitted.note_published(is_new=is_new)


async def test_own_jobs_count_until_the_stream_shows_them():
    entered, release = asyncio.Event(), asyncio.Event()

    async def read() -> int:
        entered.set()
        await release.wait()
        return 5

    gauge = QueueGauge(read, 1.0)
    publish(gauge, 2)
    reading = asyncio.create_task(gauge.refresh())
    await entered.wait()
    publish(gauge, 1)
    release.set()
    await reading
    assert gauge.num_jobs == 6


async def test_admitted_jobs_count_whatever_is_read_meanwhile():
    async def read() -> int:
        return 5

    gauge = QueueGauge(read, 1.0)
    with gauge.admit(3) as admitted:
        await gauge.refresh()
        assert gauge.num_jobs == 8
        admitted.note_published(is_new=True)
        admitted.note_published(is_new=False)
    assert gauge.num_jobs == 6


async def test_the_last_depth_stays_while_the_stream_can_not_be_read():
    answers = [4]

    async def read() -> int:
        if not answers:
            raise Unavailable()
        return answers.pop()

    gauge = QueueGauge(read, 1.0)
    await gauge.refresh()
    publish(gauge, 1)
    await gauge.refresh()
    assert gauge.num_jobs == 5
