"""Requests with what is rare: schemas of every form, images and files everywhere, searches."""

from __future__ import annotations

from typing import Any

from tests.vectors.request_generator import IMAGE, Body, RequestGenerator

_FORMATS = ("date", "date-time", "email", "uuid", "ipv4", "uri", "zzz")
_REFS = ("#/$defs/x", "#/definitions/x", "#", "#/$defs/none")
_URL = "https://example.com/z.png"
_PNG = {"type": "base64", "media_type": "image/png", "data": IMAGE.rpartition(",")[2]}
_MAX_DEPTH = 3


class RareRequests(RequestGenerator):
    """Everything that RequestGenerator makes, and now and then something beside it."""

    def _one(self, *choices: Any) -> Any:
        return self._pick.choice(choices)

    # Schemas

    def _schema(self) -> Body:
        return self._deep_schema(0) if self._chance(0.5) else super()._schema()

    def _deep_schema(self, depth: int) -> Body:
        names = self._pick.sample(("a", "b", "文", 'q"r', "c d"), k=self._pick.randrange(4))
        schema: Body = {"type": "object", "properties": {n: self._node(depth) for n in names}}
        schema |= self._some(
            {
                "required": self._one(names, names[:1], [*names, "zz"], names + names[:1]),
                "additionalProperties": self._one(False, False, True, {"type": "string"}),
                "$defs": {"x": self._node(2)},
                "description": self._text(),
            },
            0.4,
        )
        return schema

    def _node(self, depth: int) -> Any:
        simple: tuple[Any, ...] = (
            {"type": "string", "description": self._text()},
            {"type": "integer", "minimum": self._one(0, -3, 1e-7, 10**19), "default": 1},
            {"type": "number", "multipleOf": 0.1, "exclusiveMaximum": self._one(9, 1e22)},
            {"type": self._one("boolean", "null", ["string", "null"])},
            {"type": "string", "enum": ["a", "文", '"']},
            {"type": "integer", "enum": [1, 2]},
            {"$ref": self._one(*_REFS)},
            {"const": self._one("x", 1, None, {"a": 1})},
            {"type": "string", "format": self._one(*_FORMATS)},
            {"type": "string", "minLength": 1, "maxLength": 9, "title": "T", "pattern": "^a+$"},
            {},
            True,
        )
        if depth >= _MAX_DEPTH or self._chance(0.6):
            return self._one(*simple)
        inner = self._node(depth + 1)
        return self._one(
            {"anyOf": [inner, {"type": "null"}]},
            {"oneOf": [inner, {"type": "null"}]},
            {"allOf": [inner]},
            {"type": "array", "items": inner, **self._some({"minItems": 1, "uniqueItems": True})},
            {"type": "array", "prefixItems": [inner], "items": False},
            self._deep_schema(depth + 1),
        )

    # Chat Completions

    def _chat(self) -> Body:
        body = super()._chat()
        body |= self._some(
            {
                "stream_options": {"include_usage": True},
                "n": self._one(1, None),
                "top_logprobs": self._one(0, 5, 20),
                "parallel_tool_calls": self._chance(0.5),
                "frequency_penalty": self._one(-2, 2, 0.1),
                "tool_choice": {"type": "function", "function": {"name": self._one("f", "zz")}},
            },
            0.12,
        )
        for message in body["messages"]:
            self._make_rare(message)
        return body

    def _make_rare(self, message: Body) -> None:
        image = {"type": "image_url", "image_url": {"url": IMAGE}}
        text = {"type": "text", "text": self._words()}
        if message["role"] == "tool" and self._chance(0.3):
            message["content"] = [text, image][: self._pick.randint(1, 2)]
        elif message["role"] == "assistant" and self._chance(0.1):
            message["content"] = self._one(None, "", [text])
        message |= self._some({"name": "ada"}, 0.05)

    def _chat_tool(self, name: str) -> Body:
        tool = super()._chat_tool(name)
        tool["function"] |= self._some({"strict": self._one(True, True, False, None)})
        return tool

    def _chat_format(self) -> Body:
        shape = super()._chat_format()
        if shape["type"] == "json_schema":
            any_schema = self._one(True, {}, {"type": "string"}, {"enum": [1]})
            shape["json_schema"] |= self._some({"strict": self._one(True, True, False)}, 0.5)
            shape["json_schema"] |= self._some({"schema": any_schema}, 0.1)
        return shape

    def _chat_content(self) -> Any:
        content = super()._chat_content()
        if isinstance(content, list):
            url = {"url": _URL, "detail": self._one("low", "high", "auto", "original")}
            file = self._one({"file": {"file_data": IMAGE}}, {"file_data": IMAGE})
            extras = [{"type": "image_url", "image_url": url}, {"type": "file", **file}]
            content += [extra for extra in extras if self._chance(0.3)]
        return content

    # Responses

    def _responses(self) -> Body:
        body = super()._responses()
        choices = ({"type": "custom", "name": "apply_patch"}, {"type": "web_search"})
        named = {"type": "function", "name": self._one("files::f", "f")}
        body |= self._some({"user": "ada", "tool_choice": self._one(*choices, named)}, 0.1)
        if self._chance(0.2):
            body.setdefault("text", {})["verbosity"] = self._one("low", "medium", "high")
        return body

    def _response_tools(self) -> list[Body]:
        tools = super()._response_tools()
        if self._chance(0.3):
            search = {"type": "tool_search", "execution": "client", "description": "Finds"}
            tools.append({**search, "parameters": self._schema()})
        for tool in tools:
            if tool["type"] == "function":
                tool |= self._some({"strict": self._one(True, False), "defer_loading": True}, 0.2)
        return tools

    def _response_format(self) -> Body:
        shape = super()._response_format()
        return shape | (self._some({"strict": True}) if shape["type"] == "json_schema" else {})

    def _item_content(self) -> Any:
        content = super()._item_content()
        if isinstance(content, list):
            file = {"filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}
            image = {"image_url": IMAGE, "detail": self._one("auto", "low", "high")}
            extras = [{"type": "input_image", **image}, {"type": "input_file", **file}]
            content += [extra for extra in extras if self._chance(0.2)]
        return content

    def _call_items(self) -> list[Body]:
        items = super()._call_items()
        text = {"type": "input_text", "text": self._words()}
        image = {"type": "input_image", "image_url": IMAGE}
        for item in items:
            if item["type"] == "function_call_output":
                item |= self._some({"output": self._one([text], [text, image])})
            elif item["type"] == "function_call":
                item |= self._some({"namespace": "files"}, 0.2)
        patches = self._patch_items() if self._chance(0.3) else []
        return items + patches + (self._search_items() if self._chance(0.2) else [])

    def _patch_items(self) -> list[Body]:
        call = {"call_id": self._call_id()}
        return [
            {"type": "custom_tool_call", **call, "name": "apply_patch", "input": self._words()},
            {"type": "custom_tool_call_output", **call, "output": self._text()},
        ]

    def _search_items(self) -> list[Body]:
        call = {"call_id": self._call_id(), "execution": "client"}
        found = {"type": "function", "name": self._one("zz", "read"), "description": self._text()}
        tools = [{**found, "parameters": RequestGenerator._schema(self)}]
        return [
            {"type": "tool_search_call", **call, "arguments": {"q": self._words()}},
            {"type": "tool_search_output", **call, "tools": tools},
        ]

    # Messages

    def _messages(self) -> Body:
        return super()._messages() | self._some({"metadata": {"user_id": "ada"}}, 0.1)

    def _messages_tool(self, name: str) -> Body:
        return super()._messages_tool(name) | self._some({"strict": True}, 0.1)

    def _reference_to(self) -> Body:
        return {"type": "tool_reference", "tool_name": self._one("f", "get_weather")}

    def _blocks(self) -> Any:
        blocks = super()._blocks()
        if isinstance(blocks, list):
            document = {"type": "text", "media_type": "text/plain", "data": self._words()}
            extras = [
                {"type": "image", "source": _PNG},
                {"type": "document", "source": document},
                {"type": "tool_addition", "tool": self._reference_to()},
            ]
            blocks += [extra for extra in extras if self._chance(0.15)]
            blocks[0] |= self._some({"cache_control": {"type": "ephemeral"}})
        return blocks

    def _call_turns(self) -> list[Body]:
        turns = super()._call_turns()
        for result in turns[1]["content"]:
            if result["type"] == "tool_result":
                image = {"type": "image", "source": {"type": "url", "url": _URL}}
                parts = [{"type": "text", "text": self._words()}, image, self._reference_to()]
                some = self._pick.sample(parts, k=self._pick.randint(1, 3))
                result |= self._some({"content": some, "is_error": True}, 0.3)
        return turns
