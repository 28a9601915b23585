"""One request is one trace, through requests, subscriptions and the queue."""

from __future__ import annotations

import asyncio

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rorqual_proto.v1 import router_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus, MessageContext
from rorqual_runtime.errors import NotFound
from rorqual_runtime.logs import current_request_id
from rorqual_runtime.queue import WorkQueue
from rorqual_runtime.settings import RuntimeSettings
from rorqual_runtime.telemetry import open_telemetry

from tests.support.bus import JOBS, answer_place, ask_place, put_job, serve_place
from tests.support.span_collector import span_collector
from tests.support.waiting import WAIT_S, soon


async def test_a_handler_runs_in_a_span_of_the_callers_trace(
    server_bus: Bus, caller_bus: Bus, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    await serve_place(server_bus, answer_place)
    with provider.get_tracer("test").start_as_current_span("gateway.chat") as root:
        await ask_place(caller_bus, "req-1")
    served = next(s for s in spans.get_finished_spans() if s.name == "router.place")
    assert served.context.trace_id == root.get_span_context().trace_id
    assert served.parent is not None
    assert served.parent.span_id == root.get_span_context().span_id
    assert served.attributes == {"rorqual.request_id": "req-1"}


async def test_the_trace_goes_on_through_the_queue(
    server_bus: Bus, caller_bus: Bus, provider: TracerProvider
) -> None:
    tracer = provider.get_tracer("test")
    queue = WorkQueue(caller_bus)
    with tracer.start_as_current_span("router.submit") as root:
        await put_job(queue, "a")
    consumer = await WorkQueue(server_bus).consumer(JOBS, "lt16k")
    (leased,) = await consumer.pull(1, WAIT_S)
    with tracer.start_as_current_span("prefill.job", context=leased.trace_context) as span:
        assert span.get_span_context().trace_id == root.get_span_context().trace_id


async def test_a_subscriber_sees_the_publishers_trace_and_none_without_one(
    server_bus: Bus, caller_bus: Bus, provider: TracerProvider
) -> None:
    seen: asyncio.Queue[int] = asyncio.Queue()

    async def handler(_message: object, _context: MessageContext) -> None:
        seen.put_nowait(trace.get_current_span().get_span_context().trace_id)

    await server_bus.subscribe(subjects.cancel(), router_pb2.CancelRequest, handler)
    with provider.get_tracer("test").start_as_current_span("gateway.cancel") as root:
        await caller_bus.publish(subjects.cancel(), router_pb2.CancelRequest())
    await caller_bus.publish(subjects.cancel(), router_pb2.CancelRequest())
    assert await soon(seen.get()) == root.get_span_context().trace_id
    assert await soon(seen.get()) == 0


async def test_an_error_marks_the_span(
    server_bus: Bus, caller_bus: Bus, spans: InMemorySpanExporter
) -> None:
    async def handler(_request: object, _context: MessageContext) -> router_pb2.PlaceReply:
        raise NotFound("the user's secret")

    await serve_place(server_bus, handler)
    await asyncio.gather(ask_place(caller_bus), return_exceptions=True)
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == "NotFound"
    assert not span.events


async def test_the_request_id_is_bound_while_the_handler_runs(
    server_bus: Bus, caller_bus: Bus
) -> None:
    async def handler(_request: object, _context: MessageContext) -> router_pb2.PlaceReply:
        placed = router_pb2.Placement(decode_id=current_request_id())
        return router_pb2.PlaceReply(placement=placed)

    await serve_place(server_bus, handler)
    assert await ask_place(caller_bus, "req-9") == "req-9"


async def test_spans_go_to_the_collector_when_an_endpoint_is_set() -> None:
    with span_collector() as collector:
        settings = RuntimeSettings(otlp_endpoint=collector.endpoint)
        telemetry = open_telemetry(settings, "router", instance_id="router-1", version="0.1.0")
        with telemetry.tracer.start_as_current_span("router.submit"):
            pass
        await asyncio.to_thread(telemetry.close)
    (span,) = collector.spans
    assert (span.service, span.instance_id, span.name) == ("router", "router-1", "router.submit")
