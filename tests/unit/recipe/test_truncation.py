"""Too long a conversation loses its oldest turns where the client allows it, and nothing else."""

from __future__ import annotations

import json

import pytest
from rorqual_recipe.conversation import Message, Role, TextPart, ToolCall
from rorqual_recipe.encode import EncodedRequest, encode_request
from rorqual_recipe.model import ServedModel
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.responses import Responses
from rorqual_recipe.truncation import removable_turns

from tests.support.chat_model_dir import MAX_CONTEXT_TOKENS, MODEL_ID

LONG = "fox " * 300


def encode(model: ServedModel, **fields: object) -> EncodedRequest:
    body = json.dumps({"model": MODEL_ID, "truncation": "auto", **fields}).encode()
    limits = ParseLimits(max_choices=1, has_vision=False)
    return encode_request(body, Responses(), model, default_max_tokens=64, limits=limits)


def talk(num_exchanges: int, text: str = LONG) -> list[dict]:
    items = [{"role": "developer", "content": "Rules."}]
    for index in range(num_exchanges):
        items += [{"role": "user", "content": f"{index} {text}"}]
        items += [{"role": "assistant", "content": f"answer {index}"}]
    return [*items, {"role": "user", "content": "last question"}]


def kept(encoded: EncodedRequest) -> list[str]:
    messages = encoded.parsed.conversation.messages
    return ["".join(p.text for p in m.parts if isinstance(p, TextPart))[:14] for m in messages]


def test_what_fits_is_left_alone(model: ServedModel) -> None:
    encoded = encode(model, input=talk(3))
    assert len(kept(encoded)) == 8 and encoded.parsed.warnings == []


def test_the_oldest_exchanges_go_and_no_more_than_needed(model: ServedModel) -> None:
    encoded = encode(model, input=talk(40))
    first, oldest, *_, last = kept(encoded)
    assert (first, last) == ("Rules.", "last question")
    assert oldest.startswith(f"{40 - (len(kept(encoded)) - 2) // 2} fox")
    assert encoded.num_prompt_tokens + encoded.sampling.max_new_tokens <= MAX_CONTEXT_TOKENS
    assert encoded.num_prompt_tokens > MAX_CONTEXT_TOKENS / 2
    num_gone = 80 - (len(kept(encoded)) - 2)
    assert encoded.parsed.warnings == [f"truncation: the oldest {num_gone} messages were left out"]


def test_without_leave_it_is_refused(model: ServedModel) -> None:
    with pytest.raises(RequestRefused) as caught:
        encode(model, input=talk(40), truncation="disabled")
    assert [problem.param for problem in caught.value.problems] == ["input"]


def test_what_has_to_stay_may_be_too_long_itself(model: ServedModel) -> None:
    with pytest.raises(RequestRefused):
        encode(model, input=[*talk(3), {"role": "user", "content": LONG * 40}])


def test_calls_and_results_go_together() -> None:
    def said(role: Role, *calls: str) -> Message:
        return Message(role, tool_calls=tuple(ToolCall(call, "f", "{}") for call in calls))

    messages = [
        said(Role.SYSTEM),
        *(said(Role.USER), said(Role.ASSISTANT, "a"), said(Role.TOOL), said(Role.ASSISTANT)),
        said(Role.USER),
        *(said(Role.ASSISTANT, "b", "c"), said(Role.TOOL), said(Role.TOOL)),
        *(said(Role.ASSISTANT, "d"), said(Role.TOOL)),
    ]
    assert removable_turns(messages) == [range(1, 5), range(6, 9)]
    assert removable_turns([said(Role.USER)]) == []
    assert removable_turns([said(Role.SYSTEM)]) == []
    assert removable_turns([]) == []
