"""Log lines carry identity and ids, never request content."""

from __future__ import annotations

import io
import json
import logging

from opentelemetry.sdk.trace import TracerProvider
from rorqual_runtime.logs import JsonFormatter, bind_request_id


def _logged(action: object) -> dict[str, object]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("router", "router-1"))
    logger = logging.getLogger("test.logs")
    logger.propagate = False
    logger.addHandler(handler)
    try:
        action(logger)  # type: ignore[operator]
    finally:
        logger.removeHandler(handler)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    return dict(json.loads(lines[0]))


def test_a_log_line_carries_identity_request_id_and_extras() -> None:
    def action(logger: logging.Logger) -> None:
        with bind_request_id("req-7"):
            logger.warning("placed", extra={"decode_id": "decode-1"})

    line = _logged(action)
    assert line["message"] == "placed"
    assert line["service"] == "router"
    assert line["request_id"] == "req-7"
    assert line["decode_id"] == "decode-1"


def test_a_logged_exception_does_not_quote_its_input() -> None:
    def action(logger: logging.Logger) -> None:
        try:
            int("the user's secret")
        except ValueError:
            logger.exception("failed")

    line = _logged(action)
    assert "secret" not in json.dumps(line)
    assert line["exception"] == "ValueError"
    assert line["traceback"]


def test_a_log_line_inside_a_span_carries_the_trace_id() -> None:
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("work") as span:
        line = _logged(lambda logger: logger.warning("inside"))
    assert line["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert "trace_id" not in _logged(lambda logger: logger.warning("outside"))
