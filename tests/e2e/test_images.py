"""Prompts with images through the whole fleet, on the small random model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.seeing import SeeingClient, SeeingOracle, data_url, image_part, text_part
from tests.support.fleet import RunningFleet, running_fleet
from tests.support.model import random_v41_dir
from tests.support.pictures import picture_file
from tests.support.span_collector import CollectedSpan, SpanCollector, span_collector
from tests.support.waiting import WAIT_S, until_blocking
from tests.support.web_server import WebServer, answer, web_server

FILES = {seed: picture_file(seed, 150 + 10 * seed, 130) for seed in range(1, 8)}
URLS = {seed: data_url(data) for seed, data in FILES.items()}
_OF_THE_SAME_SIZE = picture_file(40, 180, 130)
"""As FILES[3]."""
_LONG = " river" * 300
ASKED = {
    ("", "chat random-v41"),
    ("gateway", "recipe.encode"),
    ("gateway", "router.submit"),
    ("recipe", "vision.prepare"),
    ("router", "vision.encode_at"),
    ("router", "kvmeta.match"),
    ("router", "grammar.compile"),
    ("router", "prefill.assign"),
    ("prefill", "decode.handover"),
}
"""Who has whom do what, for a long prompt with an image and a shape of its answer."""


@pytest.fixture(scope="module")
def model_dir() -> Path:
    return random_v41_dir()


@pytest.fixture(scope="module")
def collector() -> Iterator[SpanCollector]:
    with span_collector() as running:
        yield running


@pytest.fixture(scope="module")
def seeing_fleet(
    model_dir: Path, collector: SpanCollector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningFleet]:
    env = {
        "RORQUAL_VISION_ALLOWED_NETWORKS": "127.0.0.0/8",
        "RORQUAL_OTLP_ENDPOINT": collector.endpoint,
    }
    home = tmp_path_factory.mktemp("seeing")
    with running_fleet(home, model=str(model_dir), env=env, vision=2) as running:
        yield running


@pytest.fixture(scope="module")
def client(seeing_fleet: RunningFleet, model_dir: Path) -> Iterator[SeeingClient]:
    asking = SeeingClient(seeing_fleet.base_url, model_dir)
    yield asking
    asking.http.close()


@pytest.fixture(scope="module")
def oracle(model_dir: Path) -> SeeingOracle:
    return SeeingOracle(model_dir)


@contextmanager
def serving(pages: Mapping[str, bytes]) -> Iterator[WebServer]:
    """A web server on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    manager = web_server(pages)
    try:
        yield asyncio.run_coroutine_threadsafe(manager.__aenter__(), loop).result(5)
        asyncio.run_coroutine_threadsafe(manager.__aexit__(None, None, None), loop).result(5)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


def user(*parts: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": list(parts)}]


def test_two_images_in_one_prompt_are_what_the_model_sees(
    client: SeeingClient, oracle: SeeingOracle
) -> None:
    messages = user(
        text_part("compare"), image_part(URLS[1]), text_part("and"), image_part(URLS[2])
    )
    ids = client.prompt_ids(messages)
    found = client.ask(messages)
    assert found.num_prompt_tokens == len(ids)
    assert ids.count(oracle.image_id) == len(oracle.rows(FILES[1])) + len(oracle.rows(FILES[2]))
    assert found.output_ids == oracle.answer(ids, [FILES[1], FILES[2]], 12)
    assert oracle.answer(ids, [FILES[2], FILES[1]], 12) != found.output_ids


def test_equal_text_with_another_image_shares_no_cache_and_the_same_image_does(
    client: SeeingClient, oracle: SeeingOracle
) -> None:
    """The second question differs from the first in its image only: all ids are the same."""
    first, other = (user(image_part(URLS[s]), text_part("what is it?" + _LONG)) for s in (3, 4))
    other = user(image_part(data_url(picture_file(40, 180, 130))), text_part("what is it?" + _LONG))
    ids = client.prompt_ids(first)
    assert client.prompt_ids(other) == ids
    asked = client.ask(first)
    assert asked.cached_tokens == 0
    assert asked.output_ids == oracle.answer(ids, [FILES[3]], 12)
    again = _until_cached(client, first)
    assert again.cached_tokens > 128
    assert again.output_ids == asked.output_ids
    different = client.ask(other)
    assert different.cached_tokens == 0
    assert different.output_ids == oracle.answer(ids, [_OF_THE_SAME_SIZE], 12)
    assert different.output_ids != asked.output_ids


def _until_cached(client: SeeingClient, messages: list[dict[str, object]]):  # type: ignore[no-untyped-def]
    """Blocks are written behind the answer."""
    end_s = time.monotonic() + WAIT_S
    while True:
        found = client.ask(messages)
        if found.cached_tokens or time.monotonic() > end_s:
            return found


def test_a_stored_prefix_that_ends_inside_an_image(
    client: SeeingClient, oracle: SeeingOracle
) -> None:
    """The hit is one block, which holds the first part of the image; the rest is computed."""
    data = picture_file(60, 400, 400)
    num_rows = len(oracle.rows(data))
    for num_words in range(10, 130):
        messages = user(
            text_part("say" + " river" * num_words), image_part(data_url(data)), text_part("?")
        )
        ids = client.prompt_ids(messages)
        first = ids.index(oracle.image_id)
        if first >= 128 - num_rows // 2:
            break
    assert first < 128 < first + num_rows < len(ids) < 256
    expected = oracle.answer(ids, [data], 12)
    assert client.ask(messages).output_ids == expected
    again = _until_cached(client, messages)
    assert again.cached_tokens == 128
    assert again.output_ids == expected
    other = picture_file(61, 400, 400)
    messages[0]["content"][1] = image_part(data_url(other))  # type: ignore[index]
    assert client.prompt_ids(messages) == ids
    found = client.ask(messages)
    assert found.cached_tokens == 0
    assert found.output_ids == oracle.answer(ids, [other], 12)


def test_an_image_in_a_tool_result(client: SeeingClient, oracle: SeeingOracle) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "look around"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [image_part(URLS[5])]},
    ]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    ids = client.prompt_ids(messages, tools=tools)
    assert ids.count(oracle.image_id) == len(oracle.rows(FILES[5]))
    found = client.ask(messages, tools=tools, tool_choice="none")
    expected = client.prompt_ids(messages, tools=tools, tool_choice="none")
    assert found.output_ids == oracle.answer(expected, [FILES[5]], 12)


def test_an_image_by_url_is_the_image_itself(client: SeeingClient) -> None:
    pages = {
        "/p.png": answer(FILES[6]),
        "/away": answer(b"", status="302 Found", Location="/p.png"),
    }
    inline = client.ask(user(image_part(URLS[6]), text_part("what")))
    with serving(pages) as server:
        for path in pages:
            found = client.ask(user(image_part(server.url(path)), text_part("what")))
            assert found.output_ids == inline.output_ids
        assert len(server.requests) == 3


def test_broken_images_are_400_with_their_paths(client: SeeingClient) -> None:
    with serving({"/text": answer(b"hello")}) as server:
        reply = client.chat(
            [
                {"role": "system", "content": "see"},
                {
                    "role": "user",
                    "content": [
                        text_part("these"),
                        image_part(data_url(b"no image")),
                        image_part(URLS[1]),
                        image_part(server.url("/text")),
                        image_part(server.url("/none")),
                        image_part("http://10.0.0.1/secret"),
                    ],
                },
            ]
        )
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    for index, said in ((1, "not a png"), (3, "not a png"), (4, "404"), (5, "not a public one")):
        assert f"messages[1].content[{index}]" in message, message
        assert said in message
    assert "content[2]" not in message


def test_the_other_protocols_see_too(client: SeeingClient, oracle: SeeingOracle) -> None:
    data = URLS[7].partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "what"}]
    body = {"messages": [{"role": "user", "content": content}]}
    counted = client.post("/v1/messages/count_tokens", body).json()["input_tokens"]
    said = client.post("/v1/messages", {**body, "max_tokens": 4}).json()
    assert (
        said["usage"]["input_tokens"] + said["usage"].get("cache_read_input_tokens", 0) == counted
    )
    assert counted > len(oracle.rows(FILES[7]))
    parts = [{"type": "input_image", "image_url": URLS[7]}, {"type": "input_text", "text": "what"}]
    item = {"role": "user", "content": parts}
    reply = client.post("/v1/responses", {"input": [item], "max_output_tokens": 16})
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["input_tokens"] > len(oracle.rows(FILES[7]))


def test_low_detail_and_many_images(client: SeeingClient, oracle: SeeingOracle) -> None:
    big = data_url(picture_file(9, 800, 800))
    high, low = (
        client.prompt_ids(user(image_part(big, detail=d), text_part("x"))) for d in ("high", "low")
    )
    assert low.count(oracle.image_id) < high.count(oracle.image_id)
    many = user(*(image_part(data_url(picture_file(s, 90, 90))) for s in range(20, 32)))
    files = [picture_file(s, 90, 90) for s in range(20, 32)]
    found = client.ask(many, max_tokens=4)
    assert found.output_ids == oracle.answer(client.prompt_ids(many), files, 4)


def test_a_request_that_needs_everybody_is_one_tree_at_the_collector(
    client: SeeingClient, collector: SpanCollector
) -> None:
    schema = {"type": "object", "properties": {"seen": {"type": "boolean"}}, "required": ["seen"]}
    shape = {"type": "json_schema", "json_schema": {"name": "seen", "schema": schema}}
    messages = user(image_part(URLS[1]), text_part("is it seen?" + _LONG))
    reply = client.chat(messages, response_format=shape)
    assert reply.status_code == 200, reply.text
    request_id = reply.headers["x-request-id"]
    until_blocking(
        lambda: is_whole(asked(collector.trace_of(request_id))),
        lambda: f"{ASKED ^ asked(collector.trace_of(request_id))}",
    )


def is_whole(found: set[tuple[str, str]]) -> bool:
    """Everybody was asked, and by somebody who is in the same tree."""
    return found >= ASKED and not any(asker == "" for asker, _ in found - ASKED)


def asked(spans: list[CollectedSpan]) -> set[tuple[str, str]]:
    """(service, what it had another one do); the service is empty where the parent is missing."""
    services = {span.span_id: span.service for span in spans}
    edges = {(services.get(span.parent_id, ""), span.name, span.service) for span in spans}
    return {(asker, name) for asker, name, service in edges if asker != service}


def test_images_are_replayed_where_a_window_is_gone(
    seeing_fleet: RunningFleet, client: SeeingClient, oracle: SeeingOracle
) -> None:
    """Blocks are stored, the prefill that kept their window is another one: the last 128 stored
    rows, an image among them, are run again."""
    data = picture_file(70, 300, 300)
    url = data_url(data)
    for num_words in range(200, 500):
        words = " river" * num_words
        messages = user(text_part("say" + words), image_part(url), text_part("?" + " sea" * 90))
        ids = client.prompt_ids(messages)
        first = ids.index(oracle.image_id)
        if first >= 390:
            break
    assert 384 < first < first + len(oracle.rows(data)) <= 512 < len(ids) <= 640
    assert client.ask(messages).output_ids == oracle.answer(ids, [data], 12)
    assert _until_cached(client, messages).cached_tokens == 512
    seeing_fleet.kill("prefill-1")
    seeing_fleet.restart("prefill-1")
    seeing_fleet.wait_ready("prefill-1")
    again = client.ask(messages)
    assert again.cached_tokens == 384
    assert again.output_ids == oracle.answer_after_replay(ids, [data], 4, 12)


def test_one_vision_instance_may_die(
    seeing_fleet: RunningFleet, client: SeeingClient, oracle: SeeingOracle
) -> None:
    seeing_fleet.kill("vision-1")
    num_asked = 0
    for seed in range(50, 80):
        data = picture_file(seed, 100, 100)
        messages = user(image_part(data_url(data)), text_part("what"))
        expected = oracle.answer(client.prompt_ids(messages), [data], 3)
        if not client.is_plain(expected):
            continue
        assert client.ask(messages, max_tokens=3).output_ids == expected
        num_asked += 1
        if num_asked == 6:
            return
    pytest.fail("the random model gives no plain answers")
