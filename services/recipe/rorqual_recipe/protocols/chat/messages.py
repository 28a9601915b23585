"""Messages of Chat Completions -> turns of a conversation.

Calls and results stand in a fixed relation: the tool messages right after an assistant's message
answer each of its calls once, in any order.
"""

from collections.abc import Sequence
from typing import Any

from rorqual_recipe.conversation import Message, Part, Role, TextPart, ToolCall, ToolKind
from rorqual_recipe.problems import clip
from rorqual_recipe.protocols.chat.content import ContentReader
from rorqual_recipe.protocols.chat.schema import ChatMessage, FunctionCallBody, ToolCallBody
from rorqual_recipe.protocols.notes import Notes

_SHOWN_ID_CHARS = 64


class MessageReader:
    """Reads the messages of one request; what is wrong with them is noted.

    open_calls: paths of the calls that still await a result, by id.
    """

    def __init__(self, notes: Notes, content: ContentReader) -> None:
        self._notes = notes
        self._content = content
        self._open_calls: dict[str, str] = {}
        self._answered: set[str] = set()

    def read(self, messages: Sequence[Any]) -> tuple[Message, ...]:
        """All turns in order, without those that are wrong or say nothing to the model."""
        turns: list[Message] = []
        for index, raw in enumerate(messages):
            path = f"messages[{index}]"
            body = self._notes.typed(ChatMessage, raw, path)
            if body is None:
                self._open_calls, self._answered = {}, set()
                continue
            self._check_place(body, path, is_last=index + 1 == len(messages))
            turn = self._turn(body, path)
            if turn is not None:
                turns.append(turn)
        self._refuse_open_calls()
        return tuple(turns)

    def _turn(self, body: ChatMessage, path: str) -> Message | None:
        if body.role in ("tool", "function"):
            return self._result(body, path)
        self._refuse_open_calls()
        if body.role == "assistant":
            return self._assistant(body, path)
        role = Role(body.role)
        if role is Role.REMINDER and isinstance(body.content, list):
            self._notes.problem(f"{path}.content", "must be a string")
            return None
        parts = self._required_parts(body, path, role)
        if role is Role.SYSTEM and not _says_something(parts):
            return None
        return Message(role, parts, name=body.name)

    def _required_parts(self, body: ChatMessage, path: str, role: Role) -> tuple[Part, ...]:
        if body.content is None:
            self._notes.problem(f"{path}.content", "field required")
        return self._content.read(body.content, f"{path}.content", role)

    def _assistant(self, body: ChatMessage, path: str) -> Message:
        calls = self._calls(body, path)
        content = body.refusal if body.content is None else body.content
        if content is None and body.tool_calls is None and body.function_call is None:
            self._notes.problem(f"{path}.content", "content or tool_calls must be given")
        self._open_calls = {call.call_id: at for call, at in calls}
        return Message(
            Role.ASSISTANT,
            self._content.read(content, f"{path}.content", Role.ASSISTANT),
            name=body.name,
            tool_calls=tuple(call for call, _ in calls),
            reasoning=self._reasoning(body, path),
            is_prefix=bool(body.prefix),
        )

    def _reasoning(self, body: ChatMessage, path: str) -> str | None:
        if body.reasoning_content is None:
            return body.reasoning
        if body.reasoning not in (None, body.reasoning_content):
            self._notes.warn(f"{path}.reasoning", "ignored, reasoning_content was given too")
        return body.reasoning_content

    def _calls(self, body: ChatMessage, path: str) -> list[tuple[ToolCall, str]]:
        """Calls and where they are."""
        if body.tool_calls is not None and not body.tool_calls:
            self._notes.problem(f"{path}.tool_calls", "must hold at least one call")
        calls: list[tuple[ToolCall, str]] = []
        seen: set[str] = set()
        for index, raw in enumerate(body.tool_calls or ()):
            at = f"{path}.tool_calls[{index}]"
            call = self._call(raw, at)
            if call is None:
                continue
            if call.call_id in seen:
                self._notes.problem(f"{at}.id", f"used twice: {_shown(call.call_id)}")
            seen.add(call.call_id)
            calls.append((call, at))
        return calls or self._legacy_call(body, path)

    def _call(self, raw: Any, at: str) -> ToolCall | None:
        found = self._notes.typed(ToolCallBody, raw, at)
        if found is None:
            return None
        if found.type == "custom":
            if found.custom is None:
                self._notes.problem(f"{at}.custom", "field required with type custom")
                return None
            return ToolCall(found.id, found.custom.name, found.custom.input, ToolKind.CUSTOM)
        if found.function is None:
            self._notes.problem(f"{at}.function", "field required with type function")
            return None
        return ToolCall(found.id, found.function.name, found.function.arguments)

    def _legacy_call(self, body: ChatMessage, path: str) -> list[tuple[ToolCall, str]]:
        if body.function_call is None:
            return []
        at = f"{path}.function_call"
        found = self._notes.typed(FunctionCallBody, body.function_call, at)
        if found is None:
            return []
        return [(ToolCall(_legacy_id(found.name), found.name, found.arguments), at)]

    def _result(self, body: ChatMessage, path: str) -> Message:
        call_id = self._result_id(body, path)
        if call_id is not None and self._open_calls.pop(call_id, None) is None:
            self._refuse_result(body, path, call_id)
        if call_id is not None:
            self._answered.add(call_id)
        return Message(
            Role.TOOL,
            self._required_parts(body, path, Role.TOOL),
            name=body.name,
            tool_call_id=call_id,
        )

    def _result_id(self, body: ChatMessage, path: str) -> str | None:
        if body.role == "tool":
            if body.tool_call_id is None:
                self._notes.problem(f"{path}.tool_call_id", "field required")
            return body.tool_call_id
        if body.name is None:
            self._notes.problem(f"{path}.name", "field required with role function")
            return None
        return _legacy_id(body.name)

    def _refuse_result(self, body: ChatMessage, path: str, call_id: str) -> None:
        field = "tool_call_id" if body.role == "tool" else "name"
        if call_id in self._answered:
            reason = f"the call {_shown(call_id)} was answered already"
        elif self._open_calls or self._answered:
            reason = f"the message before made no call {_shown(call_id)}"
        else:
            reason = "a tool message must follow an assistant's message with tool_calls"
        self._notes.problem(f"{path}.{field}", reason)

    def _refuse_open_calls(self) -> None:
        for call_id, at in self._open_calls.items():
            reason = f"no tool message answers the call {_shown(call_id)}"
            self._notes.problem(at if at.endswith("function_call") else f"{at}.id", reason)
        self._open_calls, self._answered = {}, set()

    def _check_place(self, body: ChatMessage, path: str, *, is_last: bool) -> None:
        if body.prefix and not (is_last and body.role == "assistant"):
            self._notes.problem(
                f"{path}.prefix", "only the last message, an assistant's, may be one"
            )
        if body.tool_calls is not None and body.role != "assistant":
            self._notes.problem(f"{path}.tool_calls", "only an assistant's message makes calls")
        if body.tool_call_id is not None and body.role != "tool":
            self._notes.warn(f"{path}.tool_call_id", "ignored, only tool messages have one")


def _says_something(parts: Sequence[Part]) -> bool:
    return any(not isinstance(part, TextPart) or part.text for part in parts)


def _legacy_id(name: str) -> str:
    """Calls of the old form have no id: the next function message of that name answers it."""
    return f"function:{name}"


def _shown(call_id: str) -> str:
    return repr(clip(call_id, _SHOWN_ID_CHARS))
