"""`python -m tests.schemas.run [--seed N] [--schemas N] [--hostile N]`.

Starts a fleet, asks it for answers of generated schemas at temperature 1, half of them as tool
calls, and checks each with `jsonschema`; then sends hostile schemas while others chat. Prints one
JSON line a figure; exit code 1 when one is off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import openai

from bench.report import at_most, emit
from tests.e2e.chat import MODEL
from tests.schemas.generate import generate
from tests.schemas.hostile import hostile
from tests.support.fleet import running_fleet

NUM_SIDE_BY_SIDE = 16
MAX_TOKENS = 300
HOSTILE_LIMIT_S = 60.0
_ASKED = [{"role": "user", "content": "Make something up."}]
_CHECKED_FORMATS = jsonschema.FormatChecker(("date", "ipv4", "ipv6", "email", "uuid"))


async def main(seed: int, num_schemas: int, num_hostile: int) -> int:
    """Exit code."""
    with (
        tempfile.TemporaryDirectory(prefix="rorqual-") as home,
        running_fleet(Path(home)) as fleet,
    ):
        client = openai.AsyncOpenAI(
            base_url=f"{fleet.base_url}/v1", api_key="none", max_retries=0, timeout=600
        )
        async with client:
            is_good = await _check_answers(client, seed, num_schemas)
            return 0 if await _check_hostile(client, seed, num_hostile) and is_good else 1


async def _check_answers(client: openai.AsyncOpenAI, seed: int, number: int) -> bool:
    found: Counter[str] = Counter()

    async def check(index: int) -> None:
        schema = generate(seed * 100_000 + index)
        outcome = await _outcome(client, schema, index, as_call=index % 2 == 1)
        found[outcome.split(":")[0]] += 1
        if outcome not in ("valid", "unfinished"):
            print(json.dumps({"seed": seed, "index": index, "outcome": outcome, "schema": schema}))

    await _side_by_side(check, number)
    counts = {key: found[key] for key in ("valid", "unfinished", "invalid", "refused")}
    bad = number - found["valid"] - found["unfinished"]
    return emit("schema_answers_off", bad, "answers", goal=0, passes=at_most, **counts)


async def _outcome(
    client: openai.AsyncOpenAI, schema: dict[str, Any], index: int, *, as_call: bool
) -> str:
    """valid, unfinished (the budget of tokens was too small), invalid: why, or refused: why."""
    try:
        answer = await _ask(client, schema, index, as_call=as_call)
    except openai.APIStatusError as error:
        return f"refused: {error.status_code} {error.message[:200]}"
    calls = answer.message.tool_calls
    text = calls[0].function.arguments if calls else answer.message.content
    try:
        jsonschema.validate(json.loads(text), schema, format_checker=_CHECKED_FORMATS)
    except (ValueError, TypeError, IndexError) as error:
        is_cut = answer.finish_reason == "length"
        return "unfinished" if is_cut else f"invalid: no JSON ({error}): {text!r}"
    except jsonschema.ValidationError as error:
        return f"invalid: {error.message[:200]}: {text!r}"
    return "valid"


async def _ask(
    client: openai.AsyncOpenAI, schema: dict[str, Any], index: int, *, as_call: bool
) -> Any:
    shape: dict[str, Any]
    if as_call:
        function = {"name": "record", "description": "", "parameters": schema, "strict": True}
        shape = {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": "record"}},
        }
    else:
        format_ = {"name": "answer", "schema": schema, "strict": True}
        shape = {"response_format": {"type": "json_schema", "json_schema": format_}}
    reply = await client.chat.completions.create(
        model=MODEL, messages=_ASKED, temperature=1, seed=index, max_tokens=MAX_TOKENS, **shape
    )
    return reply.choices[0]


async def _check_hostile(client: openai.AsyncOpenAI, seed: int, number: int) -> bool:
    if not number:
        return True
    alone_s = await _chat_latencies(client, asyncio.sleep(0))
    odd: list[str] = []
    took_s: list[float] = []

    async def attack(index: int) -> None:
        began_s = time.monotonic()
        outcome = await _hostile_outcome(client, hostile(seed * 1000 + index))
        took_s.append(time.monotonic() - began_s)
        if outcome not in ("answered", "400"):
            odd.append(f"kind {index % 10}: {outcome}")

    beside_s = await _chat_latencies(client, _side_by_side(attack, number, 4))
    ratio = _p99(beside_s) / _p99(alone_s)
    for line in odd:
        print(json.dumps({"hostile": line}))
    return all(
        (
            emit("hostile_schemas_off", len(odd), "schemas", goal=0, passes=at_most, sent=number),
            emit("hostile_schema_slowest", max(took_s), "s", goal=HOSTILE_LIMIT_S, passes=at_most),
            emit("chat_p99_beside_hostile_schemas", ratio, "x alone", num_chats=len(beside_s)),
        )
    )


async def _hostile_outcome(client: openai.AsyncOpenAI, schema: Any) -> str:
    try:
        await _ask(client, schema, 0, as_call=False)
    except openai.BadRequestError:
        return "400"
    except openai.APIStatusError as error:
        return f"{error.status_code} {error.message[:200]}"
    except openai.APIError as error:
        return f"{type(error).__name__} {error}"
    return "answered"


async def _chat_latencies(client: openai.AsyncOpenAI, during: Awaitable[None]) -> list[float]:
    """Of short chats, one after the other, while something goes on; twenty at least."""
    going = asyncio.ensure_future(during)
    took_s: list[float] = []
    while len(took_s) < 20 or not going.done():
        began_s = time.monotonic()
        await client.chat.completions.create(
            model=MODEL, messages=_ASKED, temperature=0, max_tokens=8
        )
        took_s.append(time.monotonic() - began_s)
    await going
    return took_s


async def _side_by_side(
    work: Callable[[int], Awaitable[None]], number: int, width: int = NUM_SIDE_BY_SIDE
) -> None:
    indices = iter(range(number))

    async def worker() -> None:
        for index in indices:
            await work(index)

    await asyncio.gather(*(worker() for _ in range(width)))


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[max(0, -(-len(values) * 99 // 100) - 1)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--hostile", type=int, default=100)
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.seed, options.schemas, options.hostile)))
