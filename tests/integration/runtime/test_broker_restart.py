"""The broker dies and comes back: everything that used it goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rorqual_proto.v1 import prefill_pb2, router_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus, MessageContext
from rorqual_runtime.connection import BrokerConnection
from rorqual_runtime.errors import DeadlineExceeded, Unavailable
from rorqual_runtime.queue import WorkQueue
from rorqual_runtime.settings import RuntimeSettings

from tests.support.bus import JOBS, answer_place, ask_place, discovered, put_job, serve_place
from tests.support.servers import NatsServer, free_port
from tests.support.waiting import WAIT_S, soon, until


async def test_requests_subscriptions_and_discovery_come_back(
    nats_server: NatsServer, server_bus: Bus, caller_bus: Bus
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def on_cancel(message: router_pb2.CancelRequest, _context: MessageContext) -> None:
        heard.put_nowait(message.request_id)

    await serve_place(server_bus, answer_place)
    await server_bus.subscribe(subjects.cancel(), router_pb2.CancelRequest, on_cancel)
    await nats_server.restart()
    assert await ask_place(caller_bus, "1") == "decode-1"
    await caller_bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="c"))
    assert await soon(heard.get()) == "c"
    await discovered(caller_bus, lambda found: [i.id for i in found] == ["router-1"])


async def test_a_request_made_while_the_broker_is_away_waits_for_it(
    nats_server: NatsServer, server_bus: Bus, caller_bus: Bus
) -> None:
    await serve_place(server_bus, answer_place)
    await nats_server.kill()
    asking = asyncio.create_task(ask_place(caller_bus, "1"))
    await until(lambda: not caller_bus.is_connected)
    assert not asking.done()
    await nats_server.start()
    assert await asking == "decode-1"


async def test_an_outage_does_not_count_for_a_request_that_outlasts_it(
    nats_server: NatsServer, server_bus: Bus, caller_bus: Bus
) -> None:
    await serve_place(server_bus, answer_place)
    await nats_server.kill()
    outlasting = asyncio.create_task(ask_place(caller_bus, timeout_s=0.1, outlasts_outages=True))
    with pytest.raises(Unavailable):
        await ask_place(caller_bus, timeout_s=0.2)
    caller_bus.outage_s = 0.1
    with pytest.raises(Unavailable):
        await ask_place(caller_bus, timeout_s=0.1, outlasts_outages=True)
    assert not outlasting.done()
    await nats_server.start()
    assert await soon(outlasting) == "decode-r"
    assert not caller_bus.is_settled


async def test_a_reply_lost_with_the_broker_is_asked_for_again(
    nats_server: NatsServer, server_bus: Bus, caller_bus: Bus
) -> None:
    started, calls = asyncio.Event(), 0

    async def slow_at_first(
        request: router_pb2.PlaceRequest, context: MessageContext
    ) -> router_pb2.PlaceReply:
        nonlocal calls
        calls += 1
        started.set()
        if calls == 1:
            await asyncio.sleep(600)
        return await answer_place(request, context)

    await serve_place(server_bus, slow_at_first)
    asking = asyncio.create_task(ask_place(caller_bus, "1"))
    await started.wait()
    await nats_server.restart()
    assert await soon(asking) == "decode-1"
    assert calls == 2


async def test_nothing_waits_for_ever_on_a_broker_that_stays_away(
    nats_server: NatsServer, caller_bus: Bus
) -> None:
    await nats_server.kill()
    await until(lambda: not caller_bus.is_connected)
    with pytest.raises(Unavailable):
        await soon(ask_place(caller_bus, timeout_s=0.5))
    with pytest.raises(Unavailable):
        await soon(caller_bus.connection.publish(subjects.cancel(), b"", timeout_s=0.5))


async def test_a_broker_that_answers_nothing_ends_in_deadline_exceeded(
    nats_server: NatsServer, server_bus: Bus, caller_bus: Bus
) -> None:
    await serve_place(server_bus, answer_place)
    nats_server.pause()
    try:
        with pytest.raises(DeadlineExceeded):
            await ask_place(caller_bus, timeout_s=0.5)
    finally:
        nats_server.resume()
    assert await ask_place(caller_bus, "1") == "decode-1"


async def test_a_broker_that_reads_nothing_does_not_fill_the_memory(
    nats_server: NatsServer, server_bus: Bus, caller_bus: Bus
) -> None:
    await serve_place(server_bus, answer_place)
    nats_server.pause()
    sent_bytes = 0
    try:
        with pytest.raises(Unavailable):
            while True:
                await caller_bus.connection.publish("sink", bytes(256 << 10), timeout_s=0.3)
                sent_bytes += 256 << 10
    finally:
        nats_server.resume()
    assert sent_bytes < 32 << 20
    assert await ask_place(caller_bus, "1") == "decode-1"


async def test_queued_jobs_survive_and_a_waiting_pull_gets_the_next_one(
    nats_server: NatsServer, server_bus: Bus, caller_bus: Bus
) -> None:
    queue = WorkQueue(caller_bus)
    await queue.ensure()
    await put_job(queue, "before")
    consumer = await WorkQueue(server_bus).consumer(JOBS, "lt16k")
    await nats_server.restart()
    (first,) = await consumer.pull(4, WAIT_S)
    assert first.decode(prefill_pb2.PrefillJob).kv_lease_id == "before"
    assert await first.ack()

    pulling = asyncio.create_task(consumer.pull(4, 600))
    await asyncio.sleep(0.1)  # so that a pull request is under way, mostly
    await nats_server.restart()
    await put_job(queue, "after")
    (second,) = await soon(pulling)
    assert second.decode(prefill_pb2.PrefillJob).kv_lease_id == "after"


async def test_stream_and_consumer_are_made_again_on_a_broker_that_lost_its_store(
    nats_server: NatsServer, server_bus: Bus, caller_bus: Bus
) -> None:
    queue = WorkQueue(caller_bus)
    await queue.ensure()
    consumer = await WorkQueue(server_bus).consumer(JOBS, "lt16k")
    pulling = asyncio.create_task(consumer.pull(1, 600))
    await nats_server.kill()
    _remove_tree(nats_server.directory / "jetstream")
    await nats_server.start()
    await put_job(queue, "new")
    (job,) = await soon(pulling)
    assert await job.ack()


def _remove_tree(directory: Path) -> None:
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()


async def test_no_broker_at_start_is_said_after_a_bound() -> None:
    settings = RuntimeSettings(nats_url=f"nats://127.0.0.1:{free_port()}")
    with pytest.raises(Unavailable, match="no NATS server at nats://127"):
        await Bus.connect(settings, "early", timeout_s=0.5)


async def test_a_broker_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    from tests.support import servers

    async with servers.nats_server(tmp_path) as server:
        await server.kill()
        connection = BrokerConnection("early")
        opening = asyncio.create_task(connection.open([server.url], timeout_s=WAIT_S))
        await asyncio.sleep(0.3)  # a few tries
        await server.start()
        await opening
        assert connection.is_connected
        await connection.close()
