"""Another instance that has the token log goes on in mid-stream as if it had been there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.choices import Choice, Delta
from rorqual_recipe.event_log import EventLog
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.events import FinishReason
from rorqual_recipe.output.plan import AnswerPlan
from rorqual_recipe.output.sequence import DeltaOrder
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import AnswerFacts, ParseLimits
from rorqual_recipe.streams import RequestStream

from tests.unit.recipe.answers import VOCABULARY, token_ids
from tests.vectors.stream_answers import plan_of
from tests.vectors.stream_texts import StreamTexts

BODIES = {
    "chat_completions": {"messages": [{"role": "user", "content": "x"}]},
    "responses": {"input": "x", "store": False},
    "messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
}


def make_stream(protocol: str, plan: AnswerPlan) -> RequestStream:
    adapter = PROTOCOLS[protocol]
    body = json.dumps({"model": "m", "stream": True, **BODIES[protocol]}).encode()
    parsed = adapter.parse(body, ParseLimits(max_choices=1, has_vision=False))
    facts = AnswerFacts("r1", "m", 1, None, VOCABULARY, plan.stage.thinks, signing_key=b"k" * 32)
    return RequestStream(
        request_id="r1",
        gateway_id="g1",
        adapter=adapter,
        writer=adapter.make_writer(facts, parsed),
        choices=[Choice(AnswerReader(VOCABULARY, plan), DeltaOrder(64), 0.0)],
        num_prompt_tokens=3,
        expires_s=1e9,
        log=EventLog(1),
        prompts=(),
    )


def frames_after(
    stream: RequestStream, ids: list[int], num_known: int, reason: FinishReason
) -> Iterator[bytes]:
    """Frames of the tokens behind the first num_known, which came all at once."""
    deltas = [Delta(0, at, [ids[at]]) for at in range(num_known, len(ids))]
    if num_known:
        stream.absorb(Delta(0, 0, ids[:num_known]), "d1", 1, 0.0)
    for delta in [*deltas, Delta(0, len(ids), [], finish_reason=reason)]:
        for events in stream.absorb(delta, "d1", 1, 0.0).events:
            yield from events.data


@pytest.mark.parametrize("protocol", BODIES)
@given(seed=st.integers(0, 10**9), draw=st.data())
@settings(max_examples=40, deadline=None)
def test_a_successor_sends_exactly_what_was_still_to_come(protocol, seed, draw) -> None:
    texts = StreamTexts(seed)
    parsing = texts.parsing()
    ids = token_ids(texts.text(parsing))
    plan = plan_of(parsing)
    num_known = draw.draw(st.integers(0, len(ids)))
    reason = draw.draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
    first = make_stream(protocol, plan)
    sent_before = [
        frame
        for at in range(num_known)
        for events in first.absorb(Delta(0, at, [ids[at]]), "d1", 1, 0.0).events
        for frame in events.data
    ]
    whole = list(frames_after(make_stream(protocol, plan), ids, 0, reason))
    successor = list(frames_after(make_stream(protocol, plan), ids, num_known, reason))
    assert sent_before + successor == whole
