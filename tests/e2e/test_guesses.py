"""The same requests to a fleet without guesses and to one that guesses: the same answers.

`make guesses N=200` asks that many; a test run a few.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.chat import MODEL
from tests.support.fleet import RunningFleet, running_fleet
from tests.support.waiting import until_blocking

NUM_PROMPTS = int(os.environ.get("TEST_GUESS_PROMPTS", "8"))
GUESSING = {"RORQUAL_DECODE_DRAFTER": "ngram", "RORQUAL_DECODE_GUESS_SCHEDULE": "fixed"}
THINGS = ("rivers", "clocks", "apples", "trains", "letters", "stones", "birds", "lamps")
ASKS = (
    "Repeat word for word: {a} and {b}, {b} and {a}, {a} before {b}, {b} before {a}.",
    "List five facts about {a} and five about {b}.",
    "Write a short story in which {a} meet {b}.",
    "Write Python that counts {a} and {b}.",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "items": {"type": "array", "items": {"enum": [*THINGS]}, "minItems": 2, "maxItems": 6},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["title", "items", "count"],
    "additionalProperties": False,
}


def request(number: int) -> dict[str, Any]:
    """Each of its own kind: greedy and sampled, free and in a shape, with and without penalties."""
    first, second = THINGS[number % 8], THINGS[(number // 8 + 3) % 8]
    text = ASKS[number % len(ASKS)].format(a=first, b=second) + f" Number {number}."
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": 72}
    fields["temperature"] = 0.7 if number % 8 >= 6 else 0
    if number // 4 % 2:
        shape = {"name": "answer", "schema": SCHEMA, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": shape}
    if number % 5 == 4:
        fields |= {"frequency_penalty": 0.4, "logprobs": True, "top_logprobs": 2}
    return {"model": MODEL, "seed": number, **fields}


@pytest.fixture(scope="module")
def guessing_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    with running_fleet(tmp_path_factory.mktemp("guessing"), env=GUESSING) as running:
        yield running


def answers(running: RunningFleet) -> list[Any]:
    """Text, reason, scores and number of tokens of each; several are under way at a time."""
    with httpx.Client(base_url=running.base_url, timeout=120) as client:

        def ask(number: int) -> Any:
            reply = client.post("/v1/chat/completions", json=request(number))
            assert reply.status_code == 200, reply.text
            done = reply.json()
            return done["choices"], done["usage"]["completion_tokens"]

        with ThreadPoolExecutor(6) as pool:
            return list(pool.map(ask, range(NUM_PROMPTS)))


def guesses(running: RunningFleet) -> tuple[int, int]:
    """Guessed tokens, and those of them that were taken, as reported by now."""
    loads = [load.decode for load in running.loads().values()]
    return sum(d.guessed_tokens_total for d in loads), sum(d.taken_guesses_total for d in loads)


def test_every_answer_is_the_one_without_guesses(
    shared_fleet: RunningFleet, guessing_fleet: RunningFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, found = answers(shared_fleet), answers(guessing_fleet)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours == theirs, request(number)
    until_blocking(lambda: guesses(guessing_fleet)[1] > NUM_PROMPTS, "guesses to be reported")
    num_guessed, num_taken = guesses(guessing_fleet)
    with capsys.disabled():
        tokens = sum(count for _, count in found)
        print(
            f"\n{NUM_PROMPTS} answers of {tokens} tokens are equal; {num_guessed} tokens were "
            f"guessed, {num_taken} of them taken"
        )
