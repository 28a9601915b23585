"""Traces out of the process: OTLP when an endpoint is set, else JSON lines under home/traces."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Tracer

from rorqual_runtime.logs import get_logger
from rorqual_runtime.settings import RuntimeSettings

FLUSH_INTERVAL_MS = 1000
MAX_TRACE_FILE_BYTES = 64 << 20

log = get_logger(__name__)


class JsonLinesExporter(SpanExporter):
    """Appends finished spans to one file; at `max_bytes` the file becomes `<name>.1`.

    So at most twice `max_bytes` are on disk. Runs on the batch processor's thread.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_TRACE_FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans as one append; a full disk loses spans, never the process."""
        lines = b"".join(_span_line(span) for span in spans)
        with self._lock:
            try:
                self._rotate(len(lines))
                self._file.write(lines)
                self._file.flush()
            except (OSError, ValueError):
                log.warning("spans not written", extra={"num_spans": len(spans)})
                return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        with self._lock:
            self._file.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True

    def _rotate(self, incoming_bytes: int) -> None:
        """Go on in a new file when this one is full, or somebody has removed it."""
        if self._path.exists():
            if self._file.tell() == 0 or self._file.tell() + incoming_bytes <= self._max_bytes:
                return
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.open("ab")
        self._file.close()
        self._file = fresh


def _span_line(span: ReadableSpan) -> bytes:
    context, parent = span.context, span.parent
    record: dict[str, Any] = {
        "trace_id": f"{context.trace_id:032x}" if context else "",
        "span_id": f"{context.span_id:016x}" if context else "",
        "parent_id": f"{parent.span_id:016x}" if parent else "",
        "name": span.name,
        "service": span.resource.attributes.get("service.name", ""),
        "instance_id": span.resource.attributes.get("service.instance.id", ""),
        "start_unix_ns": span.start_time,
        "end_unix_ns": span.end_time,
        "attributes": dict(span.attributes or {}),
        "status": span.status.status_code.name,
        "events": [
            {"name": e.name, "unix_ns": e.timestamp, "attributes": dict(e.attributes or {})}
            for e in span.events
        ],
    }
    return json.dumps(record, ensure_ascii=False, default=str).encode() + b"\n"


class Telemetry:
    """The tracer of one process and its way out."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self.tracer: Tracer = provider.get_tracer("rorqual")

    def flush(self, timeout_s: float = 2.0) -> None:
        """Blocks until finished spans are out, or for `timeout_s`."""
        self._provider.force_flush(int(timeout_s * 1000))

    def close(self) -> None:
        """Blocks while the last spans leave (bounded by the exporter's own timeout)."""
        self._provider.shutdown()


def open_telemetry(
    settings: RuntimeSettings, service: str, *, instance_id: str, version: str
) -> Telemetry:
    """Start tracing for one process; spans leave in batches about once a second."""
    resource = Resource.create(
        {
            "service.name": f"rorqual-{service}",
            "service.instance.id": instance_id,
            "service.version": version,
        }
    )
    sampler = ParentBased(TraceIdRatioBased(settings.trace_sample_ratio))
    provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(
            _exporter(settings, instance_id),
            max_queue_size=16_384,
            schedule_delay_millis=FLUSH_INTERVAL_MS,
            max_export_batch_size=2048,
        )
    )
    return Telemetry(provider)


def _exporter(settings: RuntimeSettings, instance_id: str) -> SpanExporter:
    if settings.otlp_endpoint:
        insecure = not settings.otlp_endpoint.startswith("https://")
        return OTLPSpanExporter(endpoint=settings.otlp_endpoint, insecure=insecure, timeout=5)
    return JsonLinesExporter(settings.home / "traces" / f"{instance_id}.jsonl")
