"""One request is one trace across the services."""

from __future__ import annotations

import subprocess
import sys
import time

import httpx
from rorqual_runtime.span_files import Span, find_trace

from tests.e2e.chat import MODEL
from tests.support.fleet import RunningFleet
from tests.support.waiting import WAIT_S

SERVICES = {"gateway", "recipe", "router", "kvmeta", "prefill", "decode"}


def _ask(running: RunningFleet) -> httpx.Response:
    """A prompt of a few blocks, so that kvmeta has something to look up."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Trace this. " * 120}],
        "max_tokens": 4,
        "temperature": 0,
    }
    answer = httpx.post(f"{running.base_url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def _roots(spans: list[Span]) -> list[Span]:
    known = {span.span_id for span in spans}
    return [span for span in spans if span.parent_id not in known]


def _spans(running: RunningFleet, request_id: str) -> list[Span]:
    """Every span, once all services have written theirs: each does so in its own time."""
    end_s = time.monotonic() + WAIT_S
    while True:
        spans = find_trace(running.home / "traces", request_id)
        is_whole = {span.service for span in spans} >= SERVICES and len(_roots(spans)) == 1
        if is_whole or time.monotonic() > end_s:
            return spans
        time.sleep(0.3)


def test_one_request_is_one_trace_with_genai_attributes(shared_fleet: RunningFleet) -> None:
    request_id = _ask(shared_fleet).headers["x-request-id"]
    spans = _spans(shared_fleet, request_id)
    assert {span.service for span in spans} >= SERVICES
    assert len({span.trace_id for span in spans}) == 1
    roots = _roots(spans)
    assert [root.service for root in roots] == ["gateway"]
    attributes = roots[0].attributes
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == MODEL
    assert attributes["gen_ai.usage.output_tokens"] == 4
    assert attributes["gen_ai.usage.input_tokens"] > 256
    for span in spans:
        assert roots[0].start_unix_ns <= span.start_unix_ns <= span.end_unix_ns


def test_the_command_prints_the_tree(shared_fleet: RunningFleet) -> None:
    request_id = _ask(shared_fleet).headers["x-request-id"]
    _spans(shared_fleet, request_id)
    done = subprocess.run(
        [sys.executable, "-m", "rorqual_cli", "trace", request_id, "--home", shared_fleet.home],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for service in SERVICES:
        assert service in done.stdout
    assert " ms" in done.stdout


def test_every_service_shows_metrics_where_discovery_says(shared_fleet: RunningFleet) -> None:
    _ask(shared_fleet)
    own = {
        "gateway": "vllm:e2e_request_latency_seconds_count",
        "recipe": "rorqual_recipe_encoded_chars_total",
        "router": "rorqual_router_submitted_requests_total",
        "kvmeta": "rorqual_kvmeta_num_blocks",
        "prefill": "rorqual_prefill_tokens_per_s",
        "decode": "rorqual_decode_max_running",
    }
    instances = shared_fleet.instances(WAIT_S / 10)
    assert {instance.service for instance in instances} >= {*own, "grammar", "scaler"}
    for instance in instances:
        text = httpx.get(instance.metadata["metrics"], timeout=WAIT_S).text
        assert f'instance_id="{instance.id}"' in text
        assert "process_resident_memory_bytes" in text
        assert own.get(instance.service, "") in text
