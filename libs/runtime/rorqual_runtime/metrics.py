"""Prometheus metrics of any service: its load reports, its own measurements, its process; beside
them, whether it is ready.

Every number of a load report is a metric by itself: `rorqual_<field>`, or
`rorqual_<service>_<field>` for what only that service says; fields that end in `_total` are
counters, maps are labelled by kind, or by layer where their keys are numbers. A service adds
histograms and counters of its own to `registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from rorqual_proto.v1.load_pb2 import LoadReport

from rorqual_runtime.errors import Unsupported

_CLIENT_TIMEOUT_S = 10.0
_NOT_MEASURED = {"incarnation", "seq", "sent_unix_s"}
_NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
    FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_FLOAT,
    FieldDescriptor.CPPTYPE_BOOL,
}


class ServiceMetrics:
    """One service's registry. last_report: the load report that scrapes show."""

    def __init__(self, service: str, instance_id: str, version: str) -> None:
        self.service = service
        self.registry = CollectorRegistry()
        self.is_ready: Callable[[], bool] = lambda: False
        self.last_report = LoadReport(service=service, instance_id=instance_id)
        self._info = {"service": service, "instance_id": instance_id, "version": version}
        self.registry.register(_Reported(self))
        ProcessCollector(registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        """Who this is, and its last load report."""
        yield InfoMetricFamily("rorqual_instance", "This instance", value=self._info)
        yield from load_metrics(self.last_report)


class _Reported(Collector):
    def __init__(self, metrics: ServiceMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.collect()


def load_metrics(report: LoadReport) -> Iterator[Metric]:
    """A metric for every number of a load report, 0 included."""
    for field in report.DESCRIPTOR.fields:
        if field.name in _NOT_MEASURED:
            continue
        if field.cpp_type in _NUMBERS:
            yield _metric(f"rorqual_{field.name}", float(getattr(report, field.name)))
        elif _is_map(field):
            yield _by_key(f"rorqual_{field.name}", field, getattr(report, field.name))
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE and report.HasField(field.name):
            yield from _detail_metrics(field.name, getattr(report, field.name))


def _detail_metrics(prefix: str, detail: Any) -> Iterator[Metric]:
    for field in detail.DESCRIPTOR.fields:
        name = f"rorqual_{prefix}_{field.name}"
        value = getattr(detail, field.name)
        if _is_map(field):
            yield _by_key(name, field, value)
        elif not field.is_repeated and field.cpp_type in _NUMBERS:
            yield _metric(name, float(value))


def _metric(name: str, value: float) -> Metric:
    text = f"{name.removeprefix('rorqual_')} of the load report"
    if name.endswith("_total"):
        return CounterMetricFamily(name.removesuffix("_total"), text, value=value)
    return GaugeMetricFamily(name, text, value=value)


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _by_key(name: str, field: Any, values: Any) -> Metric:
    key_field = field.message_type.fields_by_name["key"]
    label = "layer" if key_field.cpp_type in _NUMBERS else "kind"
    text = f"{name.removeprefix('rorqual_')} of the load report, by {label}"
    family = (
        CounterMetricFamily(name.removesuffix("_total"), text, labels=[label])
        if name.endswith("_total")
        else GaugeMetricFamily(name, text, labels=[label])
    )
    for key, value in sorted(values.items()):
        family.add_metric([str(key)], float(value))
    return family


@contextmanager
def served(metrics: ServiceMetrics, host: str, port: int) -> Iterator[int]:
    """`/metrics` and `/ready` over HTTP in threads of its own; yields the port. port: 0 = any
    free one. `/ready` names the service, with 200 or 503, for probes.

    Always in the text format: in OpenMetrics the client library turns the colon of the names that
    engines use into an underscore. Raises: Unsupported when the port can't be had.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_TIMEOUT_S
        server_version, sys_version = "rorqual", ""

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path in ("/", "/metrics"):
                self._answer(200, generate_latest(metrics.registry), CONTENT_TYPE_LATEST)
            elif path == "/ready":
                is_ready = metrics.is_ready()
                text = f"{metrics.service} {'ready' if is_ready else 'not ready'}\n"
                self._answer(200 if is_ready else 503, text.encode())
            else:
                self._answer(404, b"not here: /metrics, /ready\n")

        def _answer(self, status: int, body: bytes, content_type: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are no news."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        message = f"RORQUAL_METRICS_PORT: no metrics on {host}:{port}: {error.strerror or error}"
        raise Unsupported(message) from error
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=1.0)
