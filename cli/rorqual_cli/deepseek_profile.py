"""DeepSeek's prompt profiles, found by asking the installed `deepseek-recipe` and nothing else.

The package is run as a black box: small conversations go in, and what stands around the parts that
are known is the model's fixed text. No text of that package is part of this code.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rorqual_cli.problems import CliError

PACKAGE = "deepseek-recipe"
VERSIONS = {
    "v4": ("DeepSeek-V4-Pro", "DeepseekV4Encoding"),
    "v4.1": ("DeepSeek-V4.1-Flash", "DeepseekV41Encoding"),
}
_EFFORTS = {"minimal": 50, "low": 50, "medium": 75, "high": 75, "xhigh": 75, "max": 100}
_TOKENS = {
    "bos": "Bos",
    "eos": "Eos",
    "system": "System",
    "user": "User",
    "assistant": "Assistant",
    "reminder": "LatestReminder",
    "think_open": "ThinkingStart",
    "think_close": "ThinkingEnd",
    "dsml": "Dsml",
    "image": "Image",
}
_NEW_IN_V41 = ("system", "image")
_WORD = "Zugvogel"  # occurs in no prompt
_FAR_TOKENS = 1 << 30
Pieces = list[Any]


def deepseek_profile(version: str) -> dict[str, Any]:
    """The profile of `v4` or `v4.1` as JSON values. Raises: CliError without the package."""
    try:
        package = import_module("deepseek_recipe")
    except ImportError as error:
        remedy = f"pip install {PACKAGE}, then run this command again"
        raise CliError(f"the package {PACKAGE} is not installed", remedy) from error
    return _Probe(package, version).profile()


class _Probe:
    """Questions to the package about one version."""

    def __init__(self, package: Any, version: str) -> None:
        self._package = package
        self._version = version
        self._model, encoding = VERSIONS[version]
        self._encoding = getattr(package, encoding)()
        self._tokens = {
            name: getattr(package.SpecialToken, kind).default_str()
            for name, kind in _TOKENS.items()
        }

    def profile(self) -> dict[str, Any]:
        is_v4 = self._version == "v4"
        return {
            "format": "rorqual-prompt-profile",
            "version": 1,
            "encoding": f"deepseek-{self._version}",
            "source": f"{PACKAGE} {self._package.__version__}",
            "thinks_by_default": self._chat(messages=_USER).conversation.thinking_mode,
            "tokens": {k: v for k, v in self._tokens.items() if not (is_v4 and k in _NEW_IN_V41)},
            "effort": self._effort(),
            "tools": self._tool_texts(),
            "formats": self._formats(),
            "late_system": self._late_system() if is_v4 else None,
            "image_text": self._image_text() if is_v4 else None,
            "functions": {"apply_patch": self._apply_patch()},
            "sampling": {
                "plain": self._rules(thinks=False, tools=False),
                "thinking": self._rules(thinks=True, tools=False),
                "thinking_with_tools": self._rules(thinks=True, tools=True),
            },
        }

    def _chat(self, **fields: Any) -> Any:
        request = self._package.ChatCompletionRequest({"model": self._model, **fields})
        return request.convert(self._package.ConversionOptions())

    def _pieces(self, conversation: Any) -> Pieces:
        """A prompt with its special tokens as objects."""
        rendered = self._encoding.render_conversation(conversation)
        names = {spelling: name for name, spelling in self._tokens.items()}
        pieces: Pieces = []
        start = 0
        for first, last in rendered.special_ranges:
            pieces += [rendered.prompt[start:first], {"token": names[rendered.prompt[first:last]]}]
            start = last
        pieces.append(rendered.prompt[start:])
        return [piece for piece in pieces if piece != ""]

    def _chat_pieces(self, **fields: Any) -> Pieces:
        return self._pieces(self._chat(**fields).conversation)

    def _effort(self) -> dict[str, Any]:
        lines = {
            word: {"percent": percent, "text": self._effort_line(reasoning_effort=word)}
            for word, percent in _EFFORTS.items()
        }
        unset = self._effort_line()
        default = next(word for word in ("high", *lines) if lines[word]["text"] == unset)
        number = _numbered(lines) if self._version != "v4" else None
        return {"default": default, "lines": lines, "number": number}

    def _effort_line(self, **fields: Any) -> Pieces:
        pieces = self._chat_pieces(messages=_USER, thinking={"type": "enabled"}, **fields)
        return _until(pieces[1:], {"token": "user"}, skip=({"token": "system"},))

    def _tool_texts(self) -> dict[str, Pieces]:
        system = self._package.SystemMessage(_WORD)
        tool = self._package.ToolDefinition(_WORD, parameters={})
        user = self._package.UserMessage("hi")
        pieces = self._plain([system, user], tools=[tool])
        section = _until(_after(pieces, _WORD), {"token": "user"})
        before, after = _around_tool(section)
        later = self._package.SystemMessage("", tools=[tool])
        update = self._plain([user, later])
        if self._version == "v4":
            return {"before": before, "after": after, "update": []}
        between = update[update.index({"token": "system"}) + 1 :]
        return {"before": before, "after": after, "update": _around_tool(between)[0]}

    def _plain(self, messages: Sequence[Any], **fields: Any) -> Pieces:
        conversation = self._package.Conversation(messages, thinking_mode=False, **fields)
        return self._pieces(conversation)

    def _formats(self) -> dict[str, Pieces]:
        system, user = self._package.SystemMessage(_WORD), self._package.UserMessage("hi")
        json_object = self._plain([system, user], response_format="json_object")
        json_schema = self._plain([system, user], response_schema={"const": _WORD})
        section = _until(_after(json_schema, _WORD), {"token": "user"})
        section[-1] = section[-1].removesuffix(f'{{"const": "{_WORD}"}}')
        return {
            "json_object": _until(_after(json_object, _WORD), {"token": "user"}),
            "json_schema": section,
        }

    def _late_system(self) -> list[str]:
        messages = [*_USER, {"role": "system", "content": _WORD}]
        text = self._messages(messages).conversation.messages[-1].content
        before, after = text.split(_WORD)
        return [before, after]

    def _image_text(self) -> str:
        source = {"type": "url", "url": "https://example.com/a.png"}
        content = [{"type": "image", "source": source}]
        converted = self._messages([{"role": "user", "content": content}]).conversation
        return str(converted.messages[0].content)

    def _messages(self, messages: Sequence[Any]) -> Any:
        body = {"model": self._model, "max_tokens": 8, "messages": messages}
        return self._package.MessagesRequest(body).convert(self._package.ConversionOptions())

    def _apply_patch(self) -> dict[str, Any]:
        tools = [{"type": "custom", "name": "apply_patch"}]
        body = {"model": self._model, "input": "hi", "tools": tools}
        request = self._package.ResponsesRequest(body)
        tool = request.convert(self._package.ConversionOptions()).conversation.tools[0]
        return {"description": tool.description, "parameters": tool.parameters}

    def _rules(self, *, thinks: bool, tools: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "messages": _USER,
            "thinking": {"type": "enabled" if thinks else "disabled"},
        }
        if tools:
            fields["tools"] = [{"type": "function", "function": {"name": _WORD}}]
        options = self._package.ConversionOptions()
        bound = f"{'' if thinks else 'non_'}thinking_max_tokens_upper_bound"
        default = self._chat(**fields).resolve_max_tokens(1, _FAR_TOKENS)
        return {
            "temperature": self._number_rule("temperature", fields),
            "top_p": self._number_rule("top_p", fields),
            "max_tokens_bound": getattr(options, bound),
            "default_max_tokens": default,
            "default_max_tokens_by_effort": self._by_effort(fields, default) if thinks else {},
        }

    def _number_rule(self, name: str, fields: dict[str, Any]) -> dict[str, float | None]:
        low, high = 0.25, 0.984375  # as float32 the same
        unset, of_low, of_high = (
            round(getattr(self._chat(**fields, **wish).inference_options, name), 6)
            for wish in ({}, {name: low}, {name: high})
        )
        if of_low == of_high:
            return {"fixed": of_low}
        rule = {"default": unset}
        return rule if of_low == low else {**rule, "at_least": of_low}

    def _by_effort(self, fields: dict[str, Any], default: int) -> dict[str, int]:
        by_effort = {
            word: self._chat(**fields, reasoning_effort=word).resolve_max_tokens(1, _FAR_TOKENS)
            for word in _EFFORTS
        }
        return {word: length for word, length in by_effort.items() if length != default}


_USER = [{"role": "user", "content": "hi"}]


def _after(pieces: Pieces, word: str) -> Pieces:
    """What follows the first string with `word` in it, from behind the word."""
    at = next(i for i, piece in enumerate(pieces) if isinstance(piece, str) and word in piece)
    rest = pieces[at].split(word, 1)[1]
    return [*([rest] if rest else []), *pieces[at + 1 :]]


def _until(pieces: Pieces, end: Any, skip: Sequence[Any] = ()) -> Pieces:
    return [piece for piece in pieces[: pieces.index(end)] if piece not in skip]


def _around_tool(pieces: Pieces) -> tuple[Pieces, Pieces]:
    """What stands before and behind the one line of JSON that names the tool."""
    at = next(i for i, piece in enumerate(pieces) if isinstance(piece, str) and _WORD in piece)
    before, line = pieces[at].split('{"name": "' + _WORD, 1)
    _, _, after = line.partition("}}")
    return [*pieces[:at], before], [*([after] if after else []), *pieces[at + 1 :]]


def _numbered(lines: dict[str, Any]) -> dict[str, Pieces]:
    """The text around the number in an effort line; every line has the same."""
    line, percent = lines["max"]["text"][0], str(lines["max"]["percent"])
    before, after = line.split(percent, 1)
    for entry in lines.values():
        if entry["text"] != [f"{before}{entry['percent']}{after}"]:
            raise CliError(f"{PACKAGE} prints efforts in a way that is not known")
    return {"before": [before], "after": [after]}
