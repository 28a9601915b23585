"""kvmeta, Redis and NATS each go away for 20 s under load: no request fails, and hits return.

Takes 90 s on a quiet machine: `make outages` runs it, `make test` leaves it out.
"""

from __future__ import annotations

import json
import os
import threading
import time
from types import TracebackType

import httpx
import pytest

from tests.e2e.chat import MODEL
from tests.support.fleet import FleetFactory, RunningFleet
from tests.support.waiting import until_blocking

pytestmark = pytest.mark.skipif(
    "TEST_OUTAGES" not in os.environ, reason="outages of 20 s each: make outages"
)
OUTAGE_S = 20.0
REQUEST_S = 120.0
NUM_CLIENTS = 4
NUM_TOKENS = 48
PREFIX = "Outages come and go. " * 40


def _ask(running: RunningFleet, content: str, max_tokens: int) -> dict[str, object]:
    """The usage of a whole answer."""
    answer = httpx.post(_url(running), json=_body(content, max_tokens), timeout=REQUEST_S)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert usage["completion_tokens"] == max_tokens
    return usage


def _stream(running: RunningFleet, content: str, max_tokens: int) -> dict[str, object]:
    """The usage of an answer that came event by event."""
    body = _body(content, max_tokens) | {"stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", _url(running), json=body, timeout=REQUEST_S) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]", lines[-1]
    usage = json.loads(lines[-2].removeprefix("data: "))["usage"]
    assert usage["completion_tokens"] == max_tokens
    return usage


def _url(running: RunningFleet) -> str:
    return f"{running.base_url}/v1/chat/completions"


def _body(content: str, max_tokens: int) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }


def _is_hit(running: RunningFleet) -> bool:
    usage = _ask(running, PREFIX, 1)
    details = usage["prompt_tokens_details"]
    return isinstance(details, dict) and details["cached_tokens"] >= 128


class Load:
    """Clients that ask one thing after another until the block ends; every other one streams."""

    def __init__(self, running: RunningFleet) -> None:
        self._running = running
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(NUM_CLIENTS)]
        self.num_answers = 0
        self.failures: list[str] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(REQUEST_S)

    def _run(self, number: int) -> None:
        ask = _stream if number % 2 else _ask
        while not self._is_over.is_set():
            try:
                ask(self._running, f"{PREFIX} Client {number}, {self.num_answers}.", NUM_TOKENS)
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            self.num_answers += 1

    def goes_on(self) -> None:
        """Return after some more answers."""
        goal = self.num_answers + 2 * NUM_CLIENTS
        until_blocking(lambda: self.num_answers >= goal, "more answers", timeout_s=REQUEST_S)


def test_no_request_fails_while_a_part_is_away_and_hits_return(fleet: FleetFactory) -> None:
    running = fleet(patient=False)
    until_blocking(lambda: _is_hit(running), "the prefix to be stored")
    with Load(running) as load:
        load.goes_on()
        for name in ("kvmeta", "redis", "nats"):
            back_s = time.monotonic() + OUTAGE_S
            instance_id = running.kill(name)
            if name != "nats":
                load.goes_on()
            time.sleep(max(0.0, back_s - time.monotonic()))
            running.restart(instance_id)
            load.goes_on()
            until_blocking(lambda: _is_hit(running), f"hits after {name}", timeout_s=60.0)
    assert not load.failures
