"""Takes spans by OTLP over gRPC, as a collector does, and keeps them for the test to look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass(frozen=True)
class CollectedSpan:
    """What a test asks about a span. parent_id: empty for the outermost."""

    service: str
    instance_id: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    request_id: str


class SpanCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """Spans in the order of their arrival. `endpoint` is for RORQUAL_OTLP_ENDPOINT."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[CollectedSpan] = []

    def trace_of(self, request_id: str) -> list[CollectedSpan]:
        """All spans so far of the trace that serves a request."""
        traces = {span.trace_id for span in self.spans if span.request_id == request_id}
        return [span for span in self.spans if span.trace_id in traces]

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for group in request.resource_spans:
            service = _text(group.resource.attributes, "service.name").removeprefix("rorqual-")
            instance_id = _text(group.resource.attributes, "service.instance.id")
            self.spans += [
                CollectedSpan(
                    service=service,
                    instance_id=instance_id,
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    request_id=_text(span.attributes, "rorqual.request_id"),
                )
                for scope in group.scope_spans
                for span in scope.spans
            ]
        return trace_service_pb2.ExportTraceServiceResponse()


def _text(attributes: Iterable[KeyValue], key: str) -> str:
    return next((one.value.string_value for one in attributes if one.key == key), "")


@contextmanager
def span_collector() -> Iterator[SpanCollector]:
    """A collector on a free port of this machine."""
    collector, server = SpanCollector(), grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()
