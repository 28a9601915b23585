"""What operators and tools see: ids, traces, metrics, readiness, the API description."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_runtime import subjects
from rorqual_runtime.settings import RuntimeSettings

from tests.support.chat_model_dir import MODEL_ID
from tests.support.waiting import WAIT_S, until

BODY = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Hello"}]}
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


async def test_ids_and_trace_are_continued_and_returned(
    start_fleet, runtime_settings: RuntimeSettings
) -> None:
    fleet = await start_fleet()
    fleet.say("Hello")
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        headers = {"X-Request-Id": "mine-1", "traceparent": TRACEPARENT}
        answer = await client.post("/v1/chat/completions", json=BODY, headers=headers)
        again = await client.post("/v1/chat/completions", json=BODY, headers=headers)
        bad = await client.post(
            "/v1/chat/completions", json={**BODY, "odd": 1}, headers={"X-Request-Id": "not valid!"}
        )
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-trace-id"] == TRACE_ID
    assert answer.json()["id"] != again.json()["id"]
    assert bad.headers["x-request-id"] != "not valid!"
    assert "odd" in bad.headers["x-rorqual-warnings"]
    spans = await _spans(runtime_settings.home, "chat ")
    mine = [span for span in spans if span["trace_id"] == TRACE_ID]
    assert mine[0]["name"] == f"chat {MODEL_ID}"
    assert mine[0]["attributes"]["gen_ai.operation.name"] == "chat"
    assert mine[0]["attributes"]["gen_ai.usage.output_tokens"] > 0
    others = await _spans(runtime_settings.home, "recipe.encode")
    assert any(span["trace_id"] == TRACE_ID for span in others)


async def _spans(home: Path, prefix: str) -> list[dict]:
    async with asyncio.timeout(WAIT_S):
        while True:
            lines = [
                json.loads(line)
                for path in (home / "traces").glob("*.jsonl")
                for line in path.read_text().splitlines()
            ]
            found = [line for line in lines if line["name"].startswith(prefix)]
            if found:
                return found
            await asyncio.sleep(0.1)


async def test_metrics_have_the_names_dashboards_know(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say("Hello, world!", num_cached_tokens=2)
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        await client.post("/v1/chat/completions", json={**BODY, "stream": True})
        text = (await client.get("/metrics")).text
    label = f'model_name="{MODEL_ID}"'
    for line in (
        f"vllm:num_requests_running{{{label}}} 0.0",
        f"vllm:time_to_first_token_seconds_count{{{label}}} 1.0",
        f"vllm:e2e_request_latency_seconds_count{{{label}}} 1.0",
        f"vllm:prefix_cache_hits_total{{{label}}} 2.0",
        f'vllm:request_success_total{{finished_reason="stop",{label}}} 1.0',
    ):
        assert line in text
    for name in (
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:prefix_cache_queries_total",
    ):
        assert name in text


async def test_ready_names_the_missing_services(start_fleet) -> None:
    fleet = await start_fleet()
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        missing = ["router", "prefill", "decode", "kvmeta"]

        async def knows_recipe() -> bool:
            return bool((await client.get("/ready")).json()["missing"] == missing)

        await until(knows_recipe)
        answer = await client.get("/ready")
        assert answer.status_code == 503
        for service in missing:
            report = LoadReport(service=service, instance_id=f"{service}-1")
            await fleet.backend.bus.publish(subjects.load(service, f"{service}-1"), report)

        async def is_ready() -> bool:
            return (await client.get("/ready")).status_code == 200

        await until(is_ready)


async def test_the_api_describes_itself(start_fleet) -> None:
    fleet = await start_fleet()
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    chat = paths["/v1/chat/completions"]["post"]
    fields = chat["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert {"model", "messages", "stop", "response_format"} <= set(fields)
    assert {"200", "400", "401", "404", "413", "429", "503"} <= set(chat["responses"])
    assert [p["name"] for p in chat["parameters"]] == ["Idempotency-Key", "Last-Event-ID"]
    assert {"/v1/models", "/health", "/live", "/ready", "/metrics"} <= set(paths)
    for path in ("/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/detokenize"):
        assert paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"get", "delete"} == set(paths["/v1/responses/{response_id}"])
    wrong = paths["/v1/messages"]["post"]["responses"]["400"]["content"]["application/json"]
    assert "type" in wrong["schema"]["required"]


async def test_unknown_paths_and_methods_have_the_error_shape_too(start_fleet) -> None:
    fleet = await start_fleet()
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        lost = await client.get("/v1/nothing")
        wrong = await client.get("/v1/chat/completions")
        empty = await client.post("/v1/chat/completions")
    assert (lost.status_code, wrong.status_code, empty.status_code) == (404, 405, 400)
    for answer in (lost, wrong, empty):
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.headers["x-request-id"]
    assert wrong.headers["allow"] == "POST"


async def test_an_idle_stream_is_kept_alive(start_fleet) -> None:
    fleet = await start_fleet(keepalive_s=0.1)
    fleet.say("Hello", hold_s=1.0)
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        answer = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
    assert answer.text.startswith(": keep-alive\n\n")
    assert answer.text.endswith("data: [DONE]\n\n")
