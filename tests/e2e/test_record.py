"""What `rorqual record` hears of a real fleet is what the fleet did."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import openai
from rorqual_cli.address import BusAddress
from rorqual_cli.readiness import connect
from rorqual_cli.record import listen
from rorqual_cli.trace_record import TraceRecorder

from tests.e2e.chat import MODEL
from tests.support.fleet import RunningFleet
from tests.support.waiting import WAIT_S, until_blocking


@contextmanager
def _recording(address: BusAddress, out: io.StringIO) -> Iterator[TraceRecorder]:
    """Listens in a thread of its own while the block runs."""
    recorder, is_listening, may_end = TraceRecorder(), threading.Event(), threading.Event()

    async def record() -> None:
        nc = await connect(address)
        await listen(nc, recorder, out)
        is_listening.set()
        await asyncio.to_thread(may_end.wait, WAIT_S)
        await nc.close()

    thread = threading.Thread(target=asyncio.run, args=(record(),))
    thread.start()
    try:
        assert is_listening.wait(WAIT_S)
        yield recorder
    finally:
        may_end.set()
        thread.join(WAIT_S)


def test_two_prompts_that_begin_alike(client: openai.OpenAI, shared_fleet: RunningFleet) -> None:
    out = io.StringIO()
    text = " ".join(f"record{i}" for i in range(200))
    used = []
    with _recording(shared_fleet.bus_address("recorder"), out) as recorder:
        for question in ("One?", "Two?"):
            answer = client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"{text} {question}"}],
                max_tokens=5,
            )
            used.append(answer.usage)
        until_blocking(lambda: recorder.num_written == 2)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(r["input_length"], r["output_length"]) for r in rows] == [
        (u.prompt_tokens, u.completion_tokens) for u in used
    ]
    first, second = (row["hash_ids"] for row in rows)
    assert len(first) == used[0].prompt_tokens // 128 > 3
    assert first[:3] == second[:3] and rows[0]["timestamp"] < rows[1]["timestamp"]
