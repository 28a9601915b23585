"""Jobs are delivered to one worker at a time, again when it dies, and never lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from nats.aio.msg import Msg
from rorqual_proto.v1 import prefill_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import Corrupt, NoCapacity, RequestTooLarge
from rorqual_runtime.queue import LeasedJob, QueueConsumer, WorkQueue

from tests.support.bus import JOBS, job, put_job

ACK_WAIT_S = 0.6


def name_of(leased: LeasedJob) -> str:
    return leased.decode(prefill_pb2.PrefillJob).kv_lease_id


@pytest_asyncio.fixture
async def queue(caller_bus: Bus) -> WorkQueue:
    queue = WorkQueue(caller_bus, ack_wait_s=ACK_WAIT_S)
    await queue.ensure()
    return queue


@pytest_asyncio.fixture
async def consumer(queue: WorkQueue, server_bus: Bus) -> AsyncIterator[QueueConsumer]:
    yield await WorkQueue(server_bus, ack_wait_s=ACK_WAIT_S).consumer(JOBS, "lt16k")


async def test_a_waiting_pull_gets_a_new_job_at_once(
    queue: WorkQueue, consumer: QueueConsumer
) -> None:
    pulling = asyncio.create_task(consumer.pull(8, 10))
    await asyncio.sleep(0.1)
    started_s = time.monotonic()
    await put_job(queue, "a")
    (leased,) = await pulling
    assert time.monotonic() - started_s < 5  # not when the pull of 10 s ends
    assert (name_of(leased), leased.num_delivered) == ("a", 1)
    assert await queue.depth() == 1
    assert await leased.ack()
    assert await queue.depth() == 0


async def test_pull_takes_what_is_there_up_to_its_bound(
    queue: WorkQueue, consumer: QueueConsumer
) -> None:
    for i in range(5):
        await put_job(queue, str(i))
    assert [name_of(j) for j in await consumer.pull(3, 1)] == ["0", "1", "2"]
    assert [name_of(j) for j in await consumer.pull(3, 1)] == ["3", "4"]


async def test_an_empty_queue_ends_the_pull_in_time(consumer: QueueConsumer) -> None:
    started_s = time.monotonic()
    assert await consumer.pull(4, 0.3) == []
    assert 0.25 < time.monotonic() - started_s < 5
    assert await consumer.pull(4, 0) == []


async def test_the_same_message_id_is_queued_once(queue: WorkQueue) -> None:
    assert await put_job(queue, "a")
    assert not await put_job(queue, "a")
    assert await queue.depth() == 1


async def test_a_job_whose_worker_died_goes_to_another(
    queue: WorkQueue, consumer: QueueConsumer, caller_bus: Bus
) -> None:
    await put_job(queue, "a")
    (held,) = await consumer.pull(1, 1)
    other = await WorkQueue(caller_bus, ack_wait_s=ACK_WAIT_S).consumer(JOBS, "lt16k")
    (again,) = await other.pull(1, 5)
    assert name_of(again) == "a"
    assert again.num_delivered == 2
    assert not again.is_lost
    await asyncio.sleep(ACK_WAIT_S / 2)
    assert held.is_lost


async def test_renewing_keeps_a_long_job(queue: WorkQueue, consumer: QueueConsumer) -> None:
    await put_job(queue, "a")
    (held,) = await consumer.pull(1, 1)
    async with held:
        assert await consumer.pull(1, ACK_WAIT_S * 3) == []
        assert not held.is_lost
        await held.ack()
    assert await queue.depth() == 0


async def test_an_exception_gives_the_job_back(queue: WorkQueue, consumer: QueueConsumer) -> None:
    await put_job(queue, "a")
    (held,) = await consumer.pull(1, 1)
    with pytest.raises(RuntimeError):
        async with held:
            raise RuntimeError
    (again,) = await consumer.pull(1, 2)
    assert again.num_delivered == 2


async def test_nak_waits_as_long_as_it_says(queue: WorkQueue, consumer: QueueConsumer) -> None:
    await put_job(queue, "a")
    (held,) = await consumer.pull(1, 1)
    started_s = time.monotonic()
    await held.nak(delay_s=0.4)
    assert len(await consumer.pull(1, 5)) == 1
    assert time.monotonic() - started_s > 0.35


async def test_after_three_deliveries_a_job_is_dead_lettered(
    queue: WorkQueue, consumer: QueueConsumer, caller_bus: Bus
) -> None:
    letters: asyncio.Queue[Msg] = asyncio.Queue()

    async def on_letter(msg: Msg) -> None:
        letters.put_nowait(msg)

    await caller_bus.connection.subscribe(subjects.dead_letters(), on_letter)
    await put_job(queue, "poison")
    for _ in range(3):
        (held,) = await consumer.pull(1, 2)
        assert not held.is_exhausted
        await held.nak()
    (held,) = await consumer.pull(1, 2)
    assert held.is_exhausted
    await held.dead_letter("failed three times\nin a row")
    letter = await asyncio.wait_for(letters.get(), 2)
    assert letter.data == job("poison").SerializeToString()
    assert letter.headers is not None
    assert letter.headers["Rorqual-Dead-Reason"] == "failed three times in a row"
    assert letter.headers["Rorqual-Dead-Subject"] == JOBS
    assert letter.headers["Rorqual-Num-Delivered"] == "4"
    assert await queue.depth() == 0
    assert await consumer.pull(1, ACK_WAIT_S * 2) == []


async def test_cancelling_a_pull_loses_nothing(queue: WorkQueue, server_bus: Bus) -> None:
    consumer = await WorkQueue(server_bus).consumer(JOBS, "lt16k")
    pulling = asyncio.create_task(consumer.pull(4, 30))
    await asyncio.sleep(0.1)
    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(pulling, 5)
    await put_job(queue, "a")
    started_s = time.monotonic()
    (leased,) = await consumer.pull(1, 5)
    assert name_of(leased) == "a"
    assert time.monotonic() - started_s < 4  # not by waiting for the lease of 10 s to expire


async def test_a_job_for_a_pull_that_was_cancelled_goes_to_another_worker(
    queue: WorkQueue, server_bus: Bus, caller_bus: Bus
) -> None:
    leaving = await WorkQueue(server_bus).consumer(JOBS, "lt16k")
    staying = await WorkQueue(caller_bus).consumer(JOBS, "lt16k")
    pulling = asyncio.create_task(leaving.pull(1, 30))
    await asyncio.sleep(0.1)
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)
    await put_job(queue, "a")
    started_s = time.monotonic()
    (leased,) = await staying.pull(1, 8)
    assert name_of(leased) == "a"
    assert time.monotonic() - started_s < 4  # not by waiting for the lease of 10 s to expire


async def test_a_job_that_races_a_cancelled_pull_comes_back_at_once(
    queue: WorkQueue, caller_bus: Bus, server_bus: Bus
) -> None:
    consumer = await WorkQueue(server_bus).consumer(JOBS, "lt16k")  # ack_wait 10 s
    for round_ in range(20):
        pulling = asyncio.create_task(consumer.pull(1, 30))
        await asyncio.sleep(0.005)
        putting = asyncio.create_task(put_job(queue, f"a{round_}"))
        await asyncio.sleep(0.0001 * round_)
        pulling.cancel()
        outcome = (await asyncio.gather(pulling, return_exceptions=True))[0]
        await putting
        jobs = outcome if isinstance(outcome, list) else await consumer.pull(1, 3)
        assert [name_of(j) for j in jobs] == [f"a{round_}"]
        await jobs[0].ack()


async def test_a_full_queue_refuses(caller_bus: Bus) -> None:
    queue = WorkQueue(caller_bus, max_jobs=2)
    await queue.ensure()
    await put_job(queue, "a")
    await put_job(queue, "b")
    with pytest.raises(NoCapacity):
        await put_job(queue, "c")
    assert await queue.depth() == 2


async def test_limits_can_change_on_a_stream_with_jobs(caller_bus: Bus) -> None:
    await WorkQueue(caller_bus, max_jobs=2).ensure()
    queue = WorkQueue(caller_bus, max_jobs=3)
    await queue.ensure()
    for name in "abc":
        await put_job(queue, name)
    assert await queue.depth() == 3


async def test_publish_makes_the_stream_when_nobody_has(caller_bus: Bus) -> None:
    queue = WorkQueue(caller_bus)
    assert await put_job(queue, "a")
    assert await queue.depth() == 1


async def test_depth_is_zero_without_a_stream(caller_bus: Bus) -> None:
    assert await WorkQueue(caller_bus).depth() == 0


async def test_an_oversize_job_is_refused_before_it_is_sent(queue: WorkQueue) -> None:
    big = prefill_pb2.PrefillJob(kv_lease_id="x" * 1_600_000)
    with pytest.raises(RequestTooLarge):
        await queue.publish(JOBS, big, msg_id="big")


async def test_a_job_that_is_no_such_message_is_corrupt(
    queue: WorkQueue, consumer: QueueConsumer, caller_bus: Bus
) -> None:
    await caller_bus.connection.request(JOBS, b"\xff\xff", {}, timeout_s=2)
    (held,) = await consumer.pull(1, 2)
    with pytest.raises(Corrupt):
        held.decode(prefill_pb2.PrefillJob)


async def test_two_workers_share_the_jobs(
    queue: WorkQueue, consumer: QueueConsumer, caller_bus: Bus
) -> None:
    other = await WorkQueue(caller_bus, ack_wait_s=ACK_WAIT_S).consumer(JOBS, "lt16k")
    names: list[str] = []

    async def work(source: QueueConsumer) -> int:
        count = 0
        while jobs := await source.pull(2, 0.3):
            for leased in jobs:
                async with leased:
                    names.append(name_of(leased))
                    await leased.ack()
                    count += 1
        return count

    expected = [str(i) for i in range(40)]
    for name in expected:
        await put_job(queue, name)
    counts = await asyncio.gather(work(consumer), work(other))
    assert sorted(names, key=int) == expected
    assert min(counts) > 0


async def test_the_dead_letter_stream_keeps_letters_for_inspection(
    queue: WorkQueue, consumer: QueueConsumer, caller_bus: Bus
) -> None:
    await put_job(queue, "a")
    (held,) = await consumer.pull(1, 2)
    await held.dead_letter("undecodable")
    info = await caller_bus.connection.request(
        f"$JS.API.STREAM.INFO.{subjects.DEAD_LETTER_STREAM}", b"", {}, timeout_s=2
    )
    assert json.loads(info.data)["state"]["messages"] == 1
