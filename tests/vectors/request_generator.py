"""Requests made up from a seed, for all three protocols, with the reference's own answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.vectors.reference import Reference

Case = dict[str, Any]
Body = dict[str, Any]

_MODELS = ("DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro")
_WORDS = (
    "Hello",
    " wörld",
    "你好",
    "\n",
    "\n\n",
    " ",
    "<｜User｜>",
    "｜DSML｜",
    "</think>",
    "<｜image｜>",
    "<｜end▁of▁sentence｜>",
    '"quoted" \\ ',
    "json",
    "1234",
    "😀",
)
_VALUES = [
    "x",
    "",
    'line\n"q"',
    3,
    -0.5,
    1e-7,
    12345678901234567890,
    True,
    None,
    [1, "a"],
    {"k": [None]},
]
_NAMES = ("get_weather", "list_files", "f", "run-it", "naïve name")
_SPELLINGS = ((", ", ": "), (",", ":"), (" , ", " : "))
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
IMAGE = "data:image/png;base64,iVBORw0KGgo="


class RequestGenerator:
    """Makes cases of one protocol; the same seed makes the same ones."""

    def __init__(self, protocol: str, seed: int, reference: Reference) -> None:
        self._protocol = protocol
        self._pick = random.Random(f"{protocol}/{seed}")
        self._reference = reference
        self._num_calls = 0

    def case(self, number: int) -> Case:
        """The next case."""
        make: Callable[[], Body] = getattr(self, f"_{self._protocol}")
        body = {"model": self._pick.choice(_MODELS), **make()}
        if self._pick.random() < 0.1:
            self._spoil(body)
        return {
            "id": f"gen-{self._protocol}-{number:04d}",
            "proto": self._protocol,
            "group": "generated",
            "body": body,
            "expect": self._reference.answer(self._protocol, body),
        }

    def _chance(self, share: float) -> bool:
        return self._pick.random() < share

    def _text(self) -> str:
        return "".join(self._pick.choices(_WORDS, k=self._pick.randrange(5)))

    def _words(self) -> str:
        return self._text() or "words"

    def _some(self, fields: dict[str, Any], share: float = 0.25) -> Body:
        """Each of the fields, now and then."""
        return {name: value for name, value in fields.items() if self._chance(share)}

    def _schema(self) -> Body:
        pick = self._pick
        leaf = {"type": pick.choice(("string", "integer")), "description": self._text()}
        names = pick.sample(("a", "b", "文", 'q"r'), k=pick.randrange(4))
        schema: Body = {"type": "object", "properties": {name: dict(leaf) for name in names}}
        if names and self._chance(0.4):
            schema["required"] = names[:1]
        if self._chance(0.2):
            schema["x-number"] = pick.choice((1.5, 1e-5, 2.5e-6, 1e22, 100, -0.0))
        return schema

    def _arguments(self) -> str:
        pick = self._pick
        if self._chance(0.1):
            return pick.choice(("", "no json", "[1]", '{"a": 1e400}', '{"a": 1, "a": 2}', " {} "))
        keys = pick.sample(("a", "b", "文", 'q"r'), k=pick.randrange(4))
        value = {key: pick.choice(_VALUES) for key in keys}
        return json.dumps(value, ensure_ascii=self._chance(0.2), separators=pick.choice(_SPELLINGS))

    def _call_id(self) -> str:
        self._num_calls += 1
        return self._pick.choice(("call_{:02d}", "c{}", "z{}")).format(self._num_calls)

    def _sampling(self) -> Body:
        pick = self._pick
        return self._some(
            {
                "temperature": pick.choice((0, 0.3, 1, 2)),
                "top_p": pick.choice((0.5, 0.97, 1)),
                "stream": self._chance(0.5),
            }
        )

    def _spoil(self, body: Body) -> None:
        """Makes something wrong, most often."""
        pick = self._pick
        name = pick.choice(sorted(set(body) - {"model"}))
        body[name] = pick.choice((7, "x", [], None, True, {"type": "x"}, [[]]))

    # Chat Completions

    def _chat(self) -> Body:
        pick = self._pick
        body: Body = {"messages": self._chat_messages(), **self._sampling()}
        body |= self._some(
            {
                "max_tokens": pick.choice((1, 500, 400_000)),
                "stop": pick.choice(("a", ["a", "\n"])),
                "seed": pick.randrange(100),
                "logprobs": True,
                "presence_penalty": 0.5,
                "reasoning_effort": pick.choice(_EFFORTS),
                "thinking": {"type": pick.choice(("enabled", "disabled", "adaptive"))},
                "response_format": self._chat_format(),
                "tools": [self._chat_tool(name) for name in self._tool_names()],
            },
            0.3,
        )
        if self._chance(0.15):
            choices = ("none", "auto", "required", {"type": "function", "function": {"name": "f"}})
            body["tool_choice"] = pick.choice(choices)
        return body

    def _tool_names(self) -> list[str]:
        return self._pick.sample(_NAMES[:4], k=self._pick.randrange(1, 4))

    def _chat_tool(self, name: str) -> Body:
        function = {"name": name, **self._some({"description": self._text()}, 0.7)}
        function |= self._some({"parameters": self._schema()}, 0.8)
        function |= self._some({"strict": True}, 0.1)
        return {"type": "function", "function": function}

    def _chat_format(self) -> Body:
        schema = {"name": "shape", "schema": self._schema()}
        return self._pick.choice(
            (
                {"type": "text"},
                {"type": "json_object"},
                {"type": "json_schema", "json_schema": schema},
                {"type": "regex", "regex": "a+"},
            )
        )

    def _chat_content(self) -> Any:
        if self._chance(0.7):
            return self._words()
        parts = [{"type": "text", "text": self._words()} for _ in range(self._pick.randint(1, 3))]
        if self._chance(0.3):
            parts.append({"type": "image_url", "image_url": {"url": IMAGE}})
        return parts

    def _chat_messages(self) -> list[Body]:
        messages: list[Body] = []
        for _ in range(self._pick.randint(1, 5)):
            role = self._pick.choice(
                ("system", "user", "user", "assistant", "calls", "latest_reminder")
            )
            if role in ("assistant", "calls"):
                messages += self._chat_assistant(calls=role == "calls")
            else:
                content = self._text() if role == "latest_reminder" else self._chat_content()
                messages.append({"role": role, "content": content})
        if messages[-1]["role"] == "assistant" and self._chance(0.4):
            messages[-1]["prefix"] = True
        return messages

    def _chat_assistant(self, *, calls: bool) -> list[Body]:
        message: Body = {"role": "assistant", "content": self._text()}
        message |= self._some({"reasoning_content": self._text()}, 0.5)
        if not calls:
            return [message]
        ids = [self._call_id() for _ in range(self._pick.randint(1, 3))]
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": self._function_call()} for i in ids
        ]
        self._pick.shuffle(ids)
        results = [{"role": "tool", "tool_call_id": i, "content": self._text()} for i in ids]
        return [message, *results]

    def _function_call(self) -> Body:
        return {"name": self._pick.choice(_NAMES), "arguments": self._arguments()}

    # Responses

    def _responses(self) -> Body:
        pick = self._pick
        items: Any = self._words() if self._chance(0.2) else self._items()
        body: Body = {"input": items, **self._sampling()}
        body |= self._some(
            {
                "instructions": self._words(),
                "max_output_tokens": pick.choice((1, 500, 400_000)),
                "top_logprobs": pick.choice((0, 5)),
                "reasoning": {"effort": pick.choice(_EFFORTS)},
                "tools": self._response_tools(),
                "text": {"format": self._response_format()},
            },
            0.35,
        )
        if self._chance(0.15):
            body["tool_choice"] = pick.choice(
                ("none", "auto", "required", {"type": "function", "name": "f"})
            )
        return body

    def _response_tools(self) -> list[Body]:
        tools: list[Body] = []
        for name in self._tool_names():
            tool = {"type": "function", "name": name, "parameters": self._schema()}
            tools.append(tool | self._some({"description": self._text()}))
        group = {"type": "namespace", "name": "files", "description": "Files", "tools": tools[:1]}
        extras = [group, {"type": "custom", "name": "apply_patch"}, {"type": "web_search"}]
        return [*tools[1:], *self._pick.sample(extras, k=self._pick.randrange(3))] or tools

    def _response_format(self) -> Body:
        schema = {"type": "json_schema", "name": "shape", "schema": self._schema()}
        return self._pick.choice(({"type": "text"}, {"type": "json_object"}, schema))

    def _items(self) -> list[Body]:
        items: list[Body] = []
        for _ in range(self._pick.randint(1, 5)):
            kind = self._pick.choice(("user", "user", "system", "developer", "answer", "calls"))
            if kind == "answer":
                items += self._reasoning_items()
                content = [{"type": "output_text", "text": self._words()}]
                items.append({"type": "message", "role": "assistant", "content": content})
            elif kind == "calls":
                items += self._call_items()
            else:
                items.append({"type": "message", "role": kind, "content": self._item_content()})
        return items

    def _item_content(self) -> Any:
        if self._chance(0.6):
            return self._words()
        return [{"type": "input_text", "text": self._words()} for _ in range(2)]

    def _reasoning_items(self) -> list[Body]:
        if self._chance(0.6):
            return []
        content = [{"type": "reasoning_text", "text": self._words()}]
        return [{"type": "reasoning", "id": "rs_1", "summary": [], "content": content}]

    def _call_items(self) -> list[Body]:
        items = self._reasoning_items()
        ids = [self._call_id() for _ in range(self._pick.randint(1, 3))]
        for call_id in ids:
            items.append({"type": "function_call", "call_id": call_id, **self._function_call()})
        self._pick.shuffle(ids)
        for call_id in ids:
            output = {"call_id": call_id, "output": self._text()}
            items.append({"type": "function_call_output", **output})
        return items

    # Messages

    def _messages(self) -> Body:
        pick = self._pick
        body: Body = {"max_tokens": pick.choice((1, 500, 400_000)), **self._sampling()}
        body["messages"] = self._turns()
        body |= self._some(
            {
                "system": pick.choice((self._text(), [{"type": "text", "text": self._words()}])),
                "stop_sequences": ["a", "\n"],
                "thinking": {"type": pick.choice(("enabled", "disabled", "adaptive"))},
                "output_config": {"effort": pick.choice(_EFFORTS)},
                "tools": [self._messages_tool(name) for name in self._tool_names()],
            },
            0.4,
        )
        if body.get("thinking") == {"type": "enabled"}:
            body["thinking"]["budget_tokens"] = 1024
        if self._chance(0.15):
            body["tool_choice"] = pick.choice(
                ({"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "f"})
            )
        return body

    def _messages_tool(self, name: str) -> Body:
        tool = {"name": name, "input_schema": self._schema()}
        return tool | self._some({"description": self._text(), "defer_loading": True}, 0.3)

    def _turns(self) -> list[Body]:
        turns: list[Body] = []
        for _ in range(self._pick.randint(1, 5)):
            kind = self._pick.choice(("user", "user", "assistant", "calls", "system"))
            if kind == "calls":
                turns += self._call_turns()
            else:
                turns.append({"role": kind, "content": self._blocks()})
        return turns

    def _blocks(self) -> Any:
        if self._chance(0.6):
            return self._words()
        return [{"type": "text", "text": self._words()} for _ in range(self._pick.randint(1, 2))]

    def _call_turns(self) -> list[Body]:
        ids = [self._call_id() for _ in range(self._pick.randint(1, 3))]
        blocks: list[Body] = []
        if self._chance(0.4):
            blocks.append({"type": "thinking", "thinking": self._words(), "signature": "s"})
        if self._chance(0.5):
            blocks.append({"type": "text", "text": self._words()})
        for call_id in ids:
            call = {"id": call_id, "name": self._pick.choice(_NAMES[:4])}
            value = {"a": self._pick.choice(_VALUES)}
            blocks.append({"type": "tool_use", **call, "input": value})
        self._pick.shuffle(ids)
        results: list[Body] = [
            {"type": "tool_result", "tool_use_id": i, "content": self._text()} for i in ids
        ]
        if self._chance(0.3):
            results.append({"type": "text", "text": self._words()})
        return [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
