"""What a fleet as it is shipped keeps to itself, and whom its ports let in."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
from rorqual_runtime.tensors.grpc_server import SERVICE_NAME

from tests.e2e.chat import MODEL
from tests.support.fleet import SERVERS, RunningFleet
from tests.support.waiting import WAIT_S, until_blocking

CANARY = "xylophonequetzal"
"""A word that nothing but our requests can have brought."""
TELLING = re.compile(
    rb"traceback|site-packages|\.py\b|uvicorn|starlette|fastapi|pydantic|python/|nats|redis|0x[0-9a-f]{8}",
    re.IGNORECASE,
)
"""Words that tell a stranger what runs here and how."""


def bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    """A request of each protocol, with the canary wherever a client's words may stand."""
    said = [{"role": "system", "content": CANARY}, {"role": "user", "content": f"{CANARY} now"}]
    schema = {"type": "object", "properties": {CANARY: {"type": "string", "const": CANARY}}}
    function = {"name": CANARY, "description": CANARY, "parameters": schema}
    yield (
        "chat/completions",
        {
            "messages": said,
            "max_tokens": 4,
            "stop": [CANARY],
            "user": CANARY,
            "tools": [{"type": "function", "function": function}],
        },
    )
    shape = {"type": "json_schema", "json_schema": {"name": CANARY, "schema": schema}}
    yield "chat/completions", {"messages": said, "max_tokens": 4, "response_format": shape}
    yield "messages", {"messages": said[1:], "system": CANARY, "max_tokens": 4}
    yield "responses", {"input": CANARY, "instructions": CANARY, "max_output_tokens": 16}
    yield "completions", {"prompt": CANARY, "max_tokens": 4}
    yield "chat/completions", {"messages": said, "temperature": CANARY, CANARY: CANARY}
    yield "chat/completions", {"messages": [{"role": CANARY, "content": CANARY}]}
    yield "embeddings", {"input": CANARY}


def files_with(home: Path, text: str) -> list[str]:
    """Logs and traces that hold this text, each with the line."""
    return [
        f"{path.name}: {line[:400]}"
        for folder in ("logs", "traces")
        for path in (home / folder).iterdir()
        for line in path.read_text(errors="replace").splitlines()
        if text in line.lower()
    ]


def test_what_requests_say_is_neither_logged_nor_traced(shared_fleet: RunningFleet) -> None:
    headers = {"Authorization": f"Bearer sk-{CANARY}", "X-Api-Key": CANARY}
    trace_ids = []
    with httpx.Client(base_url=shared_fleet.base_url, headers=headers, timeout=2 * WAIT_S) as http:
        for path, body in bodies():
            answer = http.post(f"/v1/{path}?{CANARY}={CANARY}", json={"model": MODEL, **body})
            assert answer.status_code < 500, answer.text
            trace_ids += [answer.headers["x-trace-id"]] if answer.is_success else []
        assert http.post("/v1/chat/completions", content=CANARY).status_code == 400
        assert http.get(f"/{CANARY}").status_code == 404
    shared_fleet.wait_idle()
    assert len(trace_ids) >= 4
    for trace_id in trace_ids:
        until_blocking(lambda: files_with(shared_fleet.home, trace_id), "its spans")  # noqa: B023
    assert files_with(shared_fleet.home, CANARY) == []


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/v1/models", b"", 200),
        ("GET", "/nothing", b"", 404),
        ("PUT", "/v1/models", b"", 405),
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b'{"messages": 3}', 400),
        ("POST", "/v1/messages", b'{"messages": [[]]}', 400),
        ("POST", "/v1/responses", b"\xff\xfe", 400),
        ("GET", "/console/../../etc/passwd", b"", 404),
    ],
)
def test_answers_tell_nothing_of_what_runs_here(
    shared_fleet: RunningFleet, method: str, path: str, content: bytes, status: int
) -> None:
    answer = httpx.request(
        method, shared_fleet.base_url + path, content=content, timeout=2 * WAIT_S
    )
    assert answer.status_code == status, answer.text
    assert not {"server", "x-powered-by", "via"} & answer.headers.keys()
    assert not TELLING.search(answer.content)
    assert not TELLING.search(str(answer.headers.raw).encode())


def test_bytes_that_are_no_http_are_answered_without_a_name(shared_fleet: RunningFleet) -> None:
    port = int(shared_fleet.base_url.rpartition(":")[2])
    told = exchange(port, b"GET / HTTP/9.9\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 400")
    assert not TELLING.search(told)


def exchange(port: int, said: bytes) -> bytes:
    """What a port of this machine answers to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection:
        connection.sendall(said)
        told = b""
        try:
            while more := connection.recv(65_536):
                told += more
        except OSError:
            pass
        return told


def test_every_port_that_listens_is_known_and_asks_who_comes(shared_fleet: RunningFleet) -> None:
    pids = shared_fleet.pids
    ports = {name: listening(pid) for name, pid in pids.items()}
    strays = [place for places in ports.values() for place in places if not is_local(place[0])]
    assert strays == []

    ((_, nats),), ((_, redis),) = ports["nats"], ports["redis"]
    hello = json.dumps({"verbose": False, "name": "stranger"}).encode()
    told = exchange(nats, b"CONNECT " + hello + b"\r\nSUB > 1\r\nPING\r\n")
    assert b"Authorization Violation" in told
    assert b"PONG" not in told
    assert exchange(redis, b"PING\r\nQUIT\r\n").startswith(b"-NOAUTH")
    assert exchange(redis, b"GET rorqual:v2:marker\r\nQUIT\r\n").startswith(b"-NOAUTH")

    for name in pids.keys() - SERVERS:
        kinds = sorted(kind_of(port) for _, port in ports[name])
        public = ["public"] if name.startswith("gateway") else []
        assert kinds == ["metrics", *public, "tensors"], (name, ports[name])
        for child in psutil.Process(pids[name]).children(recursive=True):
            of_child = listening(child.pid)  # an instance that the scaler has started, or nothing
            assert all(is_local(address) for address, _ in of_child)
            assert sorted(kind_of(port) for _, port in of_child) in ([], ["metrics", "tensors"])


def listening(pid: int) -> list[tuple[str, int]]:
    """(address, port) of each TCP port that a process listens on."""
    places = psutil.Process(pid).net_connections("tcp")
    return [(at.laddr.ip, at.laddr.port) for at in places if at.status == psutil.CONN_LISTEN]


def is_local(address: str) -> bool:
    """gRPC binds IPv4 addresses in their IPv6 form."""
    return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback


def kind_of(port: int) -> str:
    """What listens there, as a stranger without any certificate finds out."""
    told = exchange(port, b"GET /ready HTTP/1.0\r\n\r\n")
    if told.startswith(b"HTTP/"):
        is_public = exchange(port, b"GET /v1/models HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
        return "public" if is_public else "metrics"
    assert told == b"", told
    with (
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.unary_unary(f"/{SERVICE_NAME}/Release")(b"", timeout=WAIT_S)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    return "tensors"


def test_metrics_name_no_server_and_no_words(shared_fleet: RunningFleet) -> None:
    path, body = next(bodies())
    url = f"{shared_fleet.base_url}/v1/{path}"
    assert httpx.post(url, json={"model": MODEL, **body}, timeout=2 * WAIT_S).is_success
    shared_fleet.wait_idle()
    for instance in shared_fleet.instances(WAIT_S / 10):
        answer = httpx.get(instance.metadata["metrics"], timeout=WAIT_S)
        assert answer.headers.get("server", "rorqual").strip() == "rorqual"
        assert CANARY not in answer.text
