"""HTTP as clients really speak it: odd heads, other methods, other encodings, one connection."""

from __future__ import annotations

import asyncio
import gzip
import json

import httpx
import pytest
from rorqual_gateway.http_protocol import MAX_HEAD_BYTES

from tests.fuzz.http_client import Connection
from tests.support.chat_model_dir import MODEL_ID
from tests.support.waiting import WAIT_S, soon, until

BODY = json.dumps({"model": MODEL_ID, "messages": [{"role": "user", "content": "hi"}]}).encode()
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"


async def _send(url: str, *pieces: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.02)
    try:
        return await soon(reader.readuntil(b"\r\n\r\n"))
    finally:
        writer.close()
        await writer.wait_closed()


def _length() -> bytes:
    return b"content-length: %d\r\n\r\n" % len(BODY)


@pytest.mark.parametrize("num_pieces", [1, 7])
async def test_an_offer_of_another_protocol_is_declined(start_fleet, num_pieces: int) -> None:
    fleet = await start_fleet()
    fleet.say("Hello")
    data = CHAT + H2C + _length() + BODY
    size = -(-len(data) // num_pieces)
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    assert (await _send(fleet.gateway.url, *pieces)).startswith(b"HTTP/1.1 200 ")


async def test_a_body_may_look_like_a_head(start_fleet) -> None:
    fleet = await start_fleet()
    body = json.dumps({"model": MODEL_ID, "prompt": "x"}, indent="\n").replace("\n", "\r\n\r\n")
    head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert (await _send(fleet.gateway.url, head, body.encode())).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("before", [b"", CHAT + _length() + BODY])
async def test_an_endless_head_is_refused(start_fleet, before: bytes) -> None:
    fleet = await start_fleet()
    fleet.say("Hello")
    port = int(fleet.gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = b"GET /live HTTP/1.1\r\nx-a: "
    writer.write(before + begun)
    await asyncio.sleep(0.1)
    writer.write(b"a" * (MAX_HEAD_BYTES + 1 - (0 if before else len(begun))))
    async with asyncio.timeout(WAIT_S):
        answers = await reader.read()
    assert b"HTTP/1.1 431 " in answers
    writer.close()


async def test_what_is_no_http_is_refused_at_once(start_fleet) -> None:
    fleet = await start_fleet()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", int(fleet.gateway.url.rpartition(":")[2])
    )
    writer.write(b"\x16\x03\x01\x02")
    head, _, body = (await soon(reader.read())).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    writer.close()


async def test_requests_in_one_go_are_answered_in_their_order(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say("Hello")
    async with Connection(int(fleet.gateway.url.rpartition(":")[2])) as connection:
        for body, status in ((BODY, 200), (b"{", 400), (b"", 400), (BODY, 200)):
            answer = await connection.send("POST", "/v1/chat/completions", body)
            assert (answer.status, answer.is_whole) == (status, True)
    both = CHAT + _length() + BODY + b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    port = int(fleet.gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(both)
    async with asyncio.timeout(WAIT_S):
        answers = await reader.read()
    writer.close()
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize("path", ["/live", "/health", "/v1/models", f"/v1/models/{MODEL_ID}"])
async def test_head_is_get_without_its_body(start_fleet, path: str) -> None:
    fleet = await start_fleet()
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        head, get = await client.head(path), await client.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == get.headers["content-length"]
        assert (await client.head("/v1/chat/completions")).status_code == 405


async def test_a_path_with_a_slash_behind_it_is_another_one(start_fleet) -> None:
    fleet = await start_fleet()
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        openai_error = await client.post("/v1/chat/completions/", content=BODY)
        anthropic_error = await client.post("/v1/messages/", content=BODY)
    assert openai_error.status_code == anthropic_error.status_code == 404
    assert "/v1/chat/completions/" in openai_error.json()["error"]["message"]
    assert anthropic_error.json()["error"]["type"] == "not_found_error"


async def test_only_named_origins_may_call_from_a_page(start_fleet) -> None:
    named, other = {"origin": "https://app.example.com"}, {"origin": "https://other.example.com"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    closed = await start_fleet()
    opened = await start_fleet(cors_origins="https://app.example.com, http://localhost:3000")
    async with httpx.AsyncClient(base_url=opened.gateway.url, timeout=WAIT_S) as client:
        preflight = await client.options("/v1/messages", headers={**named, **asked})
        refused = await client.post("/v1/chat/completions", content=b"{", headers=named)
        elsewhere = await client.options("/v1/messages", headers={**other, **asked})
    async with httpx.AsyncClient(base_url=closed.gateway.url, timeout=WAIT_S) as client:
        unset = await client.get("/v1/models", headers=named)
    assert preflight.status_code == 200
    assert "x-api-key" in preflight.headers["access-control-allow-headers"]
    assert (refused.status_code, elsewhere.status_code, unset.status_code) == (400, 400, 200)
    allowed = [r.headers.get("access-control-allow-origin") for r in (preflight, refused)]
    assert allowed == [named["origin"]] * 2
    assert "X-Request-Id" in refused.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in {**elsewhere.headers, **unset.headers}


async def test_a_compressed_body_is_refused_by_name(start_fleet) -> None:
    fleet = await start_fleet()
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        headers = {"content-encoding": "gzip"}
        for path in ("/v1/chat/completions", "/v1/messages"):
            answer = await client.post(path, content=gzip.compress(BODY), headers=headers)
            assert (answer.status_code, "gzip" in answer.json()["error"]["message"]) == (415, True)


async def test_a_byte_order_mark_is_not_a_part_of_the_body(start_fleet) -> None:
    fleet = await start_fleet()
    fleet.say("Hello")
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        answer = await client.post("/v1/chat/completions", content=b"\xef\xbb\xbf" + BODY)
    assert answer.status_code == 200


async def test_more_connections_than_allowed_are_told_so_and_closed(start_fleet) -> None:
    fleet = await start_fleet(max_connections=2)
    port = int(fleet.gateway.url.rpartition(":")[2])
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    refused = await _send(fleet.gateway.url, b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 503 ")
    for _, writer in idle:
        writer.close()
        await writer.wait_closed()

    async def is_let_in() -> bool:
        reply = await _send(fleet.gateway.url, b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        return reply.startswith(b"HTTP/1.1 200 ")

    await until(is_let_in)
