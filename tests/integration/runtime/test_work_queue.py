"""Jobs are delivered to one worker at a time, again when it dies, and never lost."""

from __future__ import annotations

import asyncio
import json
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
from tests.support.waiting import WAIT_S, soon, until

ACK_WAIT_S = 600.0
"""No lease runs out within a test"""
SHORT_ACK_WAIT_S = 2.5
"""... but in those that are about it."""


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


async def pull_is_waiting(bus: Bus) -> None:
    """Return once the broker holds a pull request."""

    async def is_waiting() -> bool:
        subject = f"$JS.API.CONSUMER.INFO.{subjects.PREFILL_STREAM}.lt16k"
        info = await bus.connection.request(subject, b"", {}, timeout_s=WAIT_S)
        return bool(json.loads(info.data)["num_waiting"])

    await until(is_waiting, "a waiting pull")


async def test_a_waiting_pull_gets_a_new_job_at_once(
    queue: WorkQueue, consumer: QueueConsumer, caller_bus: Bus
) -> None:
    pulling = asyncio.create_task(consumer.pull(8, 600))
    await pull_is_waiting(caller_bus)
    await put_job(queue, "a")
    (leased,) = await soon(pulling)  # not when the pull ends
    assert (name_of(leased), leased.num_delivered) == ("a", 1)
    assert await queue.depth() == 1
    assert await leased.ack()
    assert await queue.depth() == 0


async def test_pull_takes_what_is_there_up_to_its_bound(
    queue: WorkQueue, consumer: QueueConsumer
) -> None:
    for i in range(5):
        await put_job(queue, str(i))
    assert [name_of(j) for j in await consumer.pull(3, WAIT_S)] == ["0", "1", "2"]
    assert [name_of(j) for j in await consumer.pull(3, WAIT_S)] == ["3", "4"]


async def test_an_empty_queue_ends_the_pull_in_time(consumer: QueueConsumer) -> None:
    assert await soon(consumer.pull(4, 0.3)) == []
    assert await soon(consumer.pull(4, 0)) == []


async def test_the_same_message_id_is_queued_once(queue: WorkQueue) -> None:
    assert await put_job(queue, "a")
    assert not await put_job(queue, "a")
    assert await queue.depth() == 1


async def test_a_job_whose_worker_died_goes_to_another(
    queue: WorkQueue, server_bus: Bus, caller_bus: Bus
) -> None:
    await put_job(queue, "a")
    dying = await WorkQueue(server_bus, ack_wait_s=SHORT_ACK_WAIT_S).consumer(JOBS, "lt16k")
    (held,) = await dying.pull(1, WAIT_S)
    other = await WorkQueue(caller_bus, ack_wait_s=SHORT_ACK_WAIT_S).consumer(JOBS, "lt16k")
    (again,) = await other.pull(1, WAIT_S)
    assert name_of(again) == "a"
    assert again.num_delivered == 2
    assert not again.is_lost
    await until(lambda: held.is_lost)


async def test_renewing_keeps_a_long_job(queue: WorkQueue, server_bus: Bus) -> None:
    consumer = await WorkQueue(server_bus, ack_wait_s=SHORT_ACK_WAIT_S).consumer(JOBS, "lt16k")
    await put_job(queue, "a")
    (held,) = await consumer.pull(1, WAIT_S)
    async with held:
        assert await consumer.pull(1, SHORT_ACK_WAIT_S * 1.4) == []
        assert not held.is_lost
        await held.ack()
    assert await queue.depth() == 0


async def test_an_exception_gives_the_job_back(queue: WorkQueue, consumer: QueueConsumer) -> None:
    await put_job(queue, "a")
    (held,) = await consumer.pull(1, WAIT_S)
    with pytest.raises(RuntimeError):
        async with held:
            raise RuntimeError
    (again,) = await consumer.pull(1, WAIT_S)
    assert again.num_delivered == 2


async def test_nak_waits_as_long_as_it_says(queue: WorkQueue, consumer: QueueConsumer) -> None:
    await put_job(queue, "a")
    (held,) = await consumer.pull(1, WAIT_S)
    await held.nak(delay_s=3600)
    assert await consumer.pull(1, 0.5) == []


async def test_after_three_deliveries_a_job_is_dead_lettered(
    queue: WorkQueue, consumer: QueueConsumer, caller_bus: Bus
) -> None:
    letters: asyncio.Queue[Msg] = asyncio.Queue()

    async def on_letter(msg: Msg) -> None:
        letters.put_nowait(msg)

    await caller_bus.connection.subscribe(subjects.dead_letters(), on_letter)
    await put_job(queue, "poison")
    for _ in range(3):
        (held,) = await consumer.pull(1, WAIT_S)
        assert not held.is_exhausted
        await held.nak()
    (held,) = await consumer.pull(1, WAIT_S)
    assert held.is_exhausted
    await held.dead_letter("failed three times\nin a row")
    letter = await soon(letters.get())
    assert letter.data == job("poison").SerializeToString()
    assert letter.headers is not None
    assert letter.headers["Rorqual-Dead-Reason"] == "failed three times in a row"
    assert letter.headers["Rorqual-Dead-Subject"] == JOBS
    assert letter.headers["Rorqual-Num-Delivered"] == "4"
    assert await queue.depth() == 0


async def test_cancelling_a_pull_loses_nothing(
    queue: WorkQueue, consumer: QueueConsumer, caller_bus: Bus
) -> None:
    pulling = asyncio.create_task(consumer.pull(4, 600))
    await pull_is_waiting(caller_bus)
    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(pulling)
    await put_job(queue, "a")
    (leased,) = await consumer.pull(1, WAIT_S)  # not by waiting for the lease to expire
    assert name_of(leased) == "a"


async def test_a_job_for_a_pull_that_was_cancelled_goes_to_another_worker(
    queue: WorkQueue, consumer: QueueConsumer, caller_bus: Bus
) -> None:
    staying = await WorkQueue(caller_bus, ack_wait_s=ACK_WAIT_S).consumer(JOBS, "lt16k")
    pulling = asyncio.create_task(consumer.pull(1, 600))
    await pull_is_waiting(caller_bus)
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)
    await put_job(queue, "a")
    (leased,) = await staying.pull(1, WAIT_S)  # not by waiting for the lease to expire
    assert name_of(leased) == "a"


async def test_a_job_that_races_a_cancelled_pull_comes_back_at_once(
    queue: WorkQueue, consumer: QueueConsumer
) -> None:
    for round_ in range(20):
        pulling = asyncio.create_task(consumer.pull(1, 600))
        await asyncio.sleep(0.005)
        putting = asyncio.create_task(put_job(queue, f"a{round_}"))
        await asyncio.sleep(0.0001 * round_)
        pulling.cancel()
        outcome = (await asyncio.gather(pulling, return_exceptions=True))[0]
        await putting
        jobs = outcome if isinstance(outcome, list) else await consumer.pull(1, WAIT_S)
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
    await caller_bus.connection.request(JOBS, b"\xff\xff", {}, timeout_s=WAIT_S)
    (held,) = await consumer.pull(1, WAIT_S)
    with pytest.raises(Corrupt):
        held.decode(prefill_pb2.PrefillJob)


async def test_two_workers_share_the_jobs(
    queue: WorkQueue, consumer: QueueConsumer, caller_bus: Bus
) -> None:
    other = await WorkQueue(caller_bus, ack_wait_s=ACK_WAIT_S).consumer(JOBS, "lt16k")
    names: list[str] = []
    both_have_some = asyncio.Barrier(2)

    async def work(source: QueueConsumer) -> None:
        jobs = await source.pull(2, WAIT_S)
        await both_have_some.wait()
        while jobs:
            for leased in jobs:
                async with leased:
                    names.append(name_of(leased))
                    await leased.ack()
            jobs = await source.pull(2, 0.3) if len(names) < len(expected) else []

    expected = [str(i) for i in range(40)]
    for name in expected:
        await put_job(queue, name)
    await soon(asyncio.gather(work(consumer), work(other)))
    assert sorted(names, key=int) == expected


async def test_the_dead_letter_stream_keeps_letters_for_inspection(
    queue: WorkQueue, consumer: QueueConsumer, caller_bus: Bus
) -> None:
    await put_job(queue, "a")
    (held,) = await consumer.pull(1, WAIT_S)
    await held.dead_letter("undecodable")
    info = await caller_bus.connection.request(
        f"$JS.API.STREAM.INFO.{subjects.DEAD_LETTER_STREAM}", b"", {}, timeout_s=WAIT_S
    )
    assert json.loads(info.data)["state"]["messages"] == 1
