"""Whatever tokens come, events keep their order and agree with each other."""

from __future__ import annotations

import json
import random

import pytest
from rorqual_recipe.conversation import Tool, ToolKind
from rorqual_recipe.encodings.base import AnswerStage
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.calls import CALL_FORMATS
from rorqual_recipe.output.events import (
    AnswerEvent,
    ContentDelta,
    FinishReason,
    OutputWarning,
    ReasoningDelta,
    TokenLogprob,
    ToolArgumentsDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from rorqual_recipe.output.plan import AnswerPlan

from tests.unit.recipe.answers import VOCABULARY, said, token_ids

DECLARED = {"f": Tool("f"), "g": Tool("g", kind=ToolKind.CUSTOM)}
FRAGMENTS = (
    *("<", "</", " calls>", "tool_calls>", ' invoke name="', "f", "g", '">\n', ' parameter name="'),
    *('a" string="true">', 'b" string="false">', "1", "[1,", '{"name": "', 'f", "arguments": {'),
    *('"x": ', "}", "}}", "]", "[", ",", '"', "\\", "\n", "\n\n", "STOP", "TO", " ", "```json\n"),
    *("text", "世", "parameter>", "invoke>", "=", "'", "[TOOL_CALLS]", "[ARGS]", ";"),
)


def made_up(rng: random.Random) -> tuple[AnswerPlan, list[int]]:
    plan = AnswerPlan(
        stage=rng.choice(list(AnswerStage)),
        reasoning_marks=rng.choice([None, ("<think>", "</think>")]),
        tool_format=rng.choice(["none", *CALL_FORMATS]),
        starts_in_tool_calls=rng.random() < 0.1,
        tools=rng.choice([None, DECLARED]),
        stops=rng.choice([(), (), ("STOP", "TO!"), ("\n\n",), ("世",)]),
        json_mode=rng.random() < 0.2,
        logprobs=rng.random() < 0.2,
    )
    ids: list[int] = []
    for _ in range(rng.randrange(40)):
        mark = rng.choice(list(VOCABULARY.added.values()))
        ids += [mark] if rng.random() < 0.3 else token_ids(rng.choice(FRAGMENTS))
    return plan, ids


def check_order(events: list[AnswerEvent]) -> None:
    """Between a call's begin and its end there is nothing but its arguments (and warnings)."""
    begun: int | None = None
    for event in events:
        if isinstance(event, ToolCallBegan):
            assert begun is None
            begun = event.index
        elif isinstance(event, ToolArgumentsDelta | ToolCallEnded):
            assert begun == event.index
            begun = None if isinstance(event, ToolCallEnded) else begun
        elif not isinstance(event, OutputWarning):
            assert begun is None
        if isinstance(event, ContentDelta | ReasoningDelta | ToolArgumentsDelta):
            event.text.encode()
    assert begun is None


@pytest.mark.parametrize("seed", range(8))
def test_any_tokens_give_events_in_order_that_agree(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(150):
        plan, ids = made_up(rng)
        logprobs = [TokenLogprob(token_id, -1.0) for token_id in ids]
        reason = rng.choice([FinishReason.STOP, FinishReason.LENGTH])
        reader, other = AnswerReader(VOCABULARY, plan), AnswerReader(VOCABULARY, plan)
        events: list[AnswerEvent] = []
        for token_id, logprob in zip(ids, logprobs, strict=True):
            events += reader.feed([token_id], [logprob])
        events += reader.finish(reason)
        assert other.feed(ids, logprobs) + other.finish(reason) == events
        assert reader.num_reasoning_tokens <= reader.num_tokens <= len(ids)
        check_order(events)
        facts = said(events)
        is_cut = reason is FinishReason.LENGTH and facts["stop"] is None
        assert (facts["finish"] == "tool_calls") == (bool(facts["calls"]) and not is_cut)
        for name, arguments, problem, call_is_cut in facts["calls"]:
            if not (problem or call_is_cut) and name != "g":
                assert isinstance(json.loads(arguments), dict)
