"""Chat bodies for the recipe bench: (bodies that come before, the body that counts)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from bench.recipe_corpus import Corpus

Bodies = Callable[[Corpus], tuple[list[bytes], bytes]]
MODEL_ID = "DeepSeek-V4.1-Flash"
NUM_TURNS = 20
TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Runs a command in the working tree and returns what it prints.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def body_of(messages: list[dict[str, object]], **fields: object) -> bytes:
    content = {"model": MODEL_ID, "messages": messages, **fields}
    return json.dumps(content, ensure_ascii=False).encode()


def one_message(num_bytes: int) -> Bodies:
    def bodies(corpus: Corpus) -> tuple[list[bytes], bytes]:
        return [], body_of([{"role": "user", "content": corpus.take(num_bytes)}])

    return bodies


def many_messages(num_messages: int, num_bytes: int) -> Bodies:
    def bodies(corpus: Corpus) -> tuple[list[bytes], bytes]:
        roles = ("user", "assistant")
        messages: list[dict[str, object]] = [
            {"role": roles[n % 2], "content": corpus.take(num_bytes // num_messages)}
            for n in range(num_messages - 1)
        ]
        return [], body_of([*messages, {"role": "user", "content": "Go on."}])

    return bodies


def session(num_bytes: int) -> Bodies:
    """The bodies of an agent's turns; the last one, of num_bytes, is what counts."""

    def bodies(corpus: Corpus) -> tuple[list[bytes], bytes]:
        turns = list(_turns(corpus, num_bytes // NUM_TURNS))
        return turns[:-1], turns[-1]

    return bodies


def _turns(corpus: Corpus, bytes_a_turn: int) -> Iterator[bytes]:
    messages: list[dict[str, object]] = [
        {"role": "system", "content": corpus.take(4000)},
        {"role": "user", "content": corpus.take(1000)},
    ]
    for turn in range(NUM_TURNS):
        if turn:
            messages += _work(corpus, turn, bytes_a_turn)
        yield body_of(messages, tools=[TOOL])


def _work(corpus: Corpus, turn: int, num_bytes: int) -> list[dict[str, object]]:
    """One call, with thoughts and words before it, and its result."""
    arguments = json.dumps({"command": corpus.take(500)}, ensure_ascii=False)
    call = {"name": "run", "arguments": arguments}
    answer = {
        "role": "assistant",
        "reasoning_content": corpus.take(num_bytes // 20),
        "content": corpus.take(300),
        "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": call}],
    }
    result = corpus.take(num_bytes - num_bytes // 20 - 1000)
    return [answer, {"role": "tool", "tool_call_id": f"call_{turn}", "content": result}]
