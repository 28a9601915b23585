"""Conversations full of text that looks like special tokens, and the same without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from rorqual_recipe.conversation import (
    ConstraintKind,
    Conversation,
    Effort,
    ImagePart,
    Message,
    OutputConstraint,
    Part,
    Role,
    TextPart,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
    ToolKind,
)

NEUTRAL = "n"
_GLUE = ("", "", " ", "\n", "x", "\u200b", "\ue000", '"', "深度")


def lookalikes_of(spellings: Sequence[str]) -> list[str]:
    """Whole tokens, halves of them, doubled and spread ones, and the tags they make."""
    halves = [part for s in spellings for part in (s[: len(s) // 2], s[len(s) // 2 :])]
    nested = [s[: len(s) // 2] + s + s[len(s) // 2 :] for s in spellings]
    spread = [s[:1] + "\ue000" + s[1:] for s in spellings]
    tags = [f"</{s} calls>" for s in spellings] + [f'<{s} invoke name="f">' for s in spellings]
    plain = ["<tool_result>", "</tool_result>", "<tool_call>", "assistant\n", "\n\n"]
    return [*spellings, *spellings, *halves, *nested, *spread, *tags, *plain]


class Speller:
    """Texts with look-alikes, or with NEUTRAL in their place: the same seed, the same places."""

    def __init__(self, seed: int, lookalikes: Sequence[str], *, neutral: bool) -> None:
        self.rng = Random(seed)
        self._lookalikes, self._neutral = lookalikes, neutral
        self._num_made = 0

    def text(self) -> str:
        """Never empty, and never the same twice."""
        self._num_made += 1
        parts = []
        for _ in range(self.rng.randint(1, 4)):
            lookalike = self.rng.choice(self._lookalikes)
            parts += [NEUTRAL if self._neutral else lookalike, self.rng.choice(_GLUE)]
        return f"{''.join(parts)}{self._num_made}{NEUTRAL if self._neutral else parts[0]}"

    def maybe(self, make: Callable[[], Any]) -> Any:
        """What `make` makes, half of the time."""
        return make() if self.rng.random() < 0.5 else None

    def some(self, make: Callable[[], Any], most: int) -> list[Any]:
        """From none to `most` of what `make` makes."""
        return [make() for _ in range(self.rng.randint(0, most))]

    def schema(self) -> dict[str, Any]:
        """A JSON Schema of an object, with text wherever a schema has text."""
        leaf = {"type": "string", "description": self.text(), "enum": [self.text()]}
        names = self.some(self.text, 3)
        properties = {name: {**leaf, "default": self.text()} for name in names}
        extra = {"title": self.text(), "$comment": self.text(), "required": names[:1]}
        return {"type": "object", "properties": properties, **extra}

    def object(self) -> str:
        """JSON of an object with text in its names and values."""
        values = (self.text, lambda: [self.text()], lambda: {self.text(): self.text()}, lambda: 1.5)
        content = {self.text(): self.rng.choice(values)() for _ in range(self.rng.randint(0, 3))}
        return json.dumps(content, ensure_ascii=self.rng.random() < 0.3)

    def arguments(self) -> str:
        """Of a call: most often an object's JSON."""
        spelled = self.object()
        return spelled if self.rng.random() < 0.9 else self.text()


def make_conversation(speller: Speller, *, images: bool) -> Conversation:
    """Every field that can hold a client's text holds some, in one conversation or another."""
    rng = speller.rng
    tools = tuple(_tool(speller) for _ in range(rng.randint(0, 3)))
    messages = [
        message for _ in range(rng.randint(1, 5)) for message in _turn(speller, tools, images)
    ]
    return Conversation(
        messages=(*speller.some(lambda: _plain(Role.SYSTEM, speller), 1), *messages),
        tools=tools,
        tool_choice=_tool_choice(speller, tools),
        thinking=Thinking(
            enabled=rng.choice((None, True, False)), effort=rng.choice([None, *Effort])
        ),
        response_format=_response_format(speller),
    )


def _response_format(speller: Speller) -> OutputConstraint | None:
    shape = speller.rng.choice((None, "object", "schema"))
    if shape is None:
        return None
    if shape == "object":
        return OutputConstraint(ConstraintKind.JSON_OBJECT)
    return OutputConstraint(
        ConstraintKind.JSON_SCHEMA, json.dumps(speller.schema(), ensure_ascii=False)
    )


def _tool_choice(speller: Speller, tools: Sequence[Tool]) -> ToolChoice:
    if not tools:
        return ToolChoice()
    mode = speller.rng.choice(tuple(ToolChoiceMode))
    names = tuple(tool.name for tool in tools[:1]) if speller.rng.random() < 0.3 else ()
    return ToolChoice(mode, names if mode is ToolChoiceMode.REQUIRED else ())


def _tool(speller: Speller) -> Tool:
    custom = speller.rng.random() < 0.2
    return Tool(
        name=speller.text(),
        description=speller.text(),
        parameters={} if custom else speller.schema(),
        kind=ToolKind.CUSTOM if custom else ToolKind.FUNCTION,
        grammar=("lark", speller.text()) if custom else None,
        namespace=speller.maybe(speller.text) or "",
        namespace_description=speller.text(),
        deferred=speller.rng.random() < 0.1,
    )


def _plain(role: Role, speller: Speller) -> Message:
    return Message(role, (TextPart(speller.text()),), name=speller.maybe(speller.text))


def _content(speller: Speller, images: bool) -> tuple[Part, ...]:
    parts: list[Part] = [TextPart(speller.text()) for _ in range(speller.rng.randint(1, 3))]
    if images and speller.rng.random() < 0.3:
        image = ImagePart(param=speller.text(), url=f"https://a/{speller.text()}")
        parts.insert(speller.rng.randint(0, len(parts)), image)
    return tuple(parts)


def _turn(speller: Speller, tools: Sequence[Tool], images: bool) -> list[Message]:
    """A question, perhaps with reminders around it, and perhaps an answer with calls."""
    rng = speller.rng
    question = Message(Role.USER, _content(speller, images), name=speller.maybe(speller.text))
    others = [_plain(rng.choice((Role.SYSTEM, Role.DEVELOPER, Role.REMINDER)), speller)]
    turn = [question, *(others if rng.random() < 0.3 else ())]
    if rng.random() < 0.7:
        turn += _answer(speller, tools, images)
    return turn


def _answer(speller: Speller, tools: Sequence[Tool], images: bool) -> list[Message]:
    calls = tuple(_call(speller, tools) for _ in range(speller.rng.randint(0, 2)))
    answer = Message(
        Role.ASSISTANT,
        tuple(map(TextPart, speller.some(speller.text, 2))) or (TextPart(speller.text()),),
        tool_calls=calls,
        reasoning=speller.maybe(speller.text),
    )
    results = [
        Message(
            Role.TOOL,
            _content(speller, images),
            name=speller.maybe(speller.text),
            tool_call_id=call.call_id,
            is_error=speller.rng.random() < 0.2,
        )
        for call in calls
    ]
    return [answer, *results]


def _call(speller: Speller, tools: Sequence[Tool]) -> ToolCall:
    name = speller.rng.choice(tools).name if tools else speller.text()
    custom = speller.rng.random() < 0.2
    return ToolCall(
        call_id=speller.text(),
        name=name,
        arguments=speller.text() if custom else speller.arguments(),
        kind=ToolKind.CUSTOM if custom else ToolKind.FUNCTION,
        namespace=speller.maybe(speller.text) or "",
    )
