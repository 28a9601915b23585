"""A vocabulary with marks, and what a list of events says."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.events import (
    AnswerEvent,
    AnswerFinished,
    ContentDelta,
    FinishReason,
    OutputWarning,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from rorqual_recipe.output.plan import AnswerPlan
from rorqual_recipe.tokens.vocabulary import Vocabulary

MARKS = ("<think>", "</think>", "｜DSML｜", "<tool_call>", "</tool_call>", "<|python_tag|>")
_WORDS = (
    b"Hello",
    b" w\xc3\xb6rld",
    b".\n\n",
    b"<b>",
    b'="',
    b"name",
    b"\n\n",
    b"\xe4\xbd",
    b'": ',
)
_END = "<|end|>"
_PIECES = re.compile("|".join(map(re.escape, (*MARKS, _END))))


def call(name: str, *parameters: str) -> str:
    """One call in DSML."""
    inner = "".join(f"{parameter}\n" for parameter in parameters)
    return f'<｜DSML｜ invoke name="{name}">\n{inner}</｜DSML｜ invoke>\n'


def block(*calls: str) -> str:
    """Calls in a block."""
    return f"<｜DSML｜ calls>\n{''.join(calls)}</｜DSML｜ calls>"


def parameter(name: str, value: str, *, is_text: bool = True) -> str:
    """One parameter in DSML."""
    kind = "true" if is_text else "false"
    return f'<｜DSML｜ parameter name="{name}" string="{kind}">{value}</｜DSML｜ parameter>'


def make_vocabulary() -> Vocabulary:
    """Every byte, some words, the marks as added tokens, one special token."""
    plain = [*(bytes([byte]) for byte in range(256)), *_WORDS]
    marks = [mark.encode() for mark in MARKS]
    added = {mark: len(plain) + index for index, mark in enumerate((*MARKS, _END))}
    special = {added[_END]: _END.encode()}
    return Vocabulary((*plain, *marks, b""), special, False, added=added)


VOCABULARY = make_vocabulary()


def token_ids(text: str, *, spelled: bool = False) -> list[int]:
    """Ids of a text; its marks are marks, or spelled by ordinary tokens."""
    if spelled:
        return _plain_ids(text.encode())
    ids, at = [], 0
    for match in _PIECES.finditer(text):
        ids += _plain_ids(text[at : match.start()].encode())
        ids.append(VOCABULARY.added[match.group()])
        at = match.end()
    return ids + _plain_ids(text[at:].encode())


def _plain_ids(data: bytes) -> list[int]:
    ids, at = [], 0
    while at < len(data):
        word = next((word for word in _WORDS if data.startswith(word, at)), None)
        ids.append(data[at] if word is None else 256 + _WORDS.index(word))
        at += 1 if word is None else len(word)
    return ids


def read(
    text: str,
    plan: AnswerPlan,
    reason: FinishReason = FinishReason.STOP,
    *,
    spelled: bool = False,
) -> list[AnswerEvent]:
    """All events of an answer."""
    reader = AnswerReader(VOCABULARY, plan)
    events = reader.feed(token_ids(text, spelled=spelled))
    return events + reader.finish(reason)


def said(events: list[AnswerEvent]) -> dict[str, Any]:
    """Reasoning, content, calls as [name, arguments, problem, is_cut], warnings and the end."""
    facts: dict[str, Any] = {"reasoning": "", "content": "", "calls": [], "warnings": []}
    for event in events:
        if isinstance(event, ReasoningDelta):
            facts["reasoning"] += event.text
        elif isinstance(event, ContentDelta):
            facts["content"] += event.text
        elif isinstance(event, ToolCallBegan):
            facts["calls"].append([event.name, "", None, False])
        elif isinstance(event, ToolArgumentsDelta):
            facts["calls"][event.index][1] += event.text
        elif isinstance(event, ToolCallEnded):
            assert facts["calls"][event.index][1] == event.arguments
            facts["calls"][event.index][2:] = [event.problem, event.is_cut]
        elif isinstance(event, OutputWarning):
            facts["warnings"].append(event.message)
        elif isinstance(event, AnswerFinished):
            facts["finish"], facts["stop"] = event.reason, event.stop_string
    return facts


def portions(draw: Any, items: Any) -> list[Any]:
    """The items in some portions, by a hypothesis data object."""
    from hypothesis import strategies as st

    ends = sorted(draw.draw(st.sets(st.integers(1, max(1, len(items))), max_size=20)))
    bounds = [0, *(end for end in ends if end < len(items)), len(items)]
    return [items[start:end] for start, end in pairwise(bounds)]
