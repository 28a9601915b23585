"""Messages of the Messages API -> turns of a conversation.

Calls and results stand in a fixed relation: every `tool_use` of a message is answered at the
start of the next one. A last message of the assistant's is continued by the answer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rorqual_recipe.conversation import Message, Part, Role, TextPart, Tool, ToolCall
from rorqual_recipe.protocols.json_spelling import model_spelling
from rorqual_recipe.protocols.messages.blocks import (
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolAdditionBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from rorqual_recipe.protocols.messages.parts import (
    RESULT_CONTENT,
    TEXT_ONLY,
    PartReader,
    PlacedBlock,
)
from rorqual_recipe.protocols.messages.schema import MessageBody
from rorqual_recipe.protocols.messages.thinking_signature import ThinkingSigner

_USER_CONTENT = ("text", "image", "document", "search_result", "tool_result")
_ASSISTANT_CONTENT = ("text", "thinking", "redacted_thinking", "tool_use")
_SYSTEM_CONTENT = ("text", "image", "tool_addition")

ENOUGH_PROBLEMS = 100

Spellings = Mapping[str, str]


class TurnReader:
    """Reads the messages of one body.

    tools: declared tools by name. spellings: inputs of calls as the client wrote them, by path.
    """

    def __init__(
        self,
        reader: PartReader,
        tools: Mapping[str, Tool],
        spellings: Spellings,
        signer: ThinkingSigner,
    ) -> None:
        self._reader = reader
        self._notes = reader.notes
        self._tools = tools
        self._spellings = spellings
        self._signer = signer
        self._open_calls: dict[str, str] = {}
        self._calls_are_known = True

    def system(self, content: str | Sequence[Any] | None) -> tuple[Message, ...]:
        """The system prompt; none when it says nothing."""
        blocks = self._reader.blocks("system", content, TEXT_ONLY)
        parts = self._reader.parts(blocks)
        return (Message(Role.SYSTEM, parts),) if _says_something(parts) else ()

    def turns(self, messages: Sequence[Any]) -> tuple[Message, ...]:
        """All turns in order; those of messages that are wrong are left out."""
        turns: list[Message] = []
        for index, raw in enumerate(messages):
            turns += self._turns_of(f"messages[{index}]", raw)
            if len(self._notes.problems) > ENOUGH_PROBLEMS:
                break
        self._refuse_open_calls()
        return _with_prefix(turns)

    def _turns_of(self, path: str, raw: Any) -> list[Message]:
        body = self._notes.typed(MessageBody, raw, path)
        if body is None:
            self._forget_calls()
            return []
        if isinstance(body.content, list) and not body.content and body.role != "assistant":
            self._notes.problem(f"{path}.content", "must hold at least one block")
        if body.role == "user":
            return self._user(f"{path}.content", body.content)
        self._refuse_open_calls()
        if body.role == "assistant":
            return [self._assistant(f"{path}.content", body.content)]
        return self._system_turn(f"{path}.content", body.content)

    def _user(self, path: str, content: str | list[Any]) -> list[Message]:
        blocks = self._reader.blocks(path, content, _USER_CONTENT)
        num_results = 0
        while num_results < len(blocks) and isinstance(blocks[num_results][1], ToolResultBlock):
            num_results += 1
        results, rest = blocks[:num_results], blocks[num_results:]
        found: list[Tool] = []
        turns = [self._result(place, block, found) for place, block in results]
        self._refuse_open_calls()
        for place, block in rest:
            if isinstance(block, ToolResultBlock):
                self._notes.problem(place, "tool_result blocks must come first in a message")
        if rest:
            turns.append(Message(Role.USER, self._reader.parts(rest)))
        if found:
            turns.append(Message(Role.SYSTEM, declared_tools=tuple(found)))
        return turns

    def _result(self, path: str, block: Any, found: list[Tool]) -> Message:
        if self._open_calls.pop(block.tool_use_id, None) is None and self._calls_are_known:
            reason = f"no tool_use {block.tool_use_id!r} in the message before, or answered twice"
            self._notes.problem(f"{path}.tool_use_id", reason)
        inner = self._reader.blocks(f"{path}.content", block.content, RESULT_CONTENT)
        parts: list[Part] = []
        for place, item in inner:
            if isinstance(item, ToolReferenceBlock):
                parts.append(TextPart(item.tool_name))
                self._declare(f"{place}.tool_name", item.tool_name, found)
            else:
                parts += self._reader.parts([(place, item)])
        return Message(
            Role.TOOL,
            tuple(parts),
            tool_call_id=block.tool_use_id,
            is_error=bool(block.is_error),
        )

    def _declare(self, path: str, name: str, found: list[Tool]) -> None:
        tool = self._tools.get(name)
        if tool is None:
            self._notes.problem(path, f"{name!r} is not among the tools")
        else:
            found.append(tool)

    def _assistant(self, path: str, content: str | list[Any]) -> Message:
        num_problems = len(self._notes.problems)
        blocks = self._reader.blocks(path, content, _ASSISTANT_CONTENT)
        self._calls_are_known = len(self._notes.problems) == num_problems
        texts: list[PlacedBlock] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        for place, block in blocks:
            if isinstance(block, TextBlock):
                if block.text or texts:
                    texts.append((place, block))
                if calls:
                    self._notes.warn(place, "text after a tool call is put before it")
            elif isinstance(block, ThinkingBlock):
                thoughts.append(block.thinking)
                self._check_signature(place, block)
            elif isinstance(block, RedactedThinkingBlock):
                self._notes.warn(place, "redacted thinking can't be read here, left out")
            elif isinstance(block, ToolUseBlock):
                calls.append(self._call(place, block))
        return Message(
            Role.ASSISTANT,
            self._reader.parts(texts),
            reasoning="\n\n".join(thoughts) if thoughts else None,
            tool_calls=tuple(calls),
        )

    def _check_signature(self, path: str, block: ThinkingBlock) -> None:
        if block.signature and not self._signer.has_signed(block.thinking, block.signature):
            self._notes.warn(f"{path}.signature", "not made here for this text; taken unverified")

    def _call(self, path: str, block: ToolUseBlock) -> ToolCall:
        if block.id in self._open_calls:
            self._notes.problem(f"{path}.id", f"{block.id!r} is the id of another call")
        if not block.name:
            self._notes.problem(f"{path}.name", "must not be empty")
        self._open_calls[block.id] = path
        spelled = self._spellings.get(f"{path}.input")
        if spelled is None:
            spelled = json.dumps(block.input, ensure_ascii=False)
        return ToolCall(block.id, block.name, model_spelling(spelled))

    def _system_turn(self, path: str, content: str | list[Any]) -> list[Message]:
        blocks = self._reader.blocks(path, content, _SYSTEM_CONTENT)
        found: list[Tool] = []
        for place, block in blocks:
            if isinstance(block, ToolAdditionBlock):
                self._declare(f"{place}.tool.name", block.tool.name, found)
        parts = self._reader.parts(blocks)
        return [Message(Role.SYSTEM, parts, declared_tools=tuple(found), stays_in_place=True)]

    def _refuse_open_calls(self) -> None:
        for call_id, path in self._open_calls.items():
            reason = f"tool_use {call_id!r} has no tool_result at the start of the next message"
            self._notes.problem(path, reason)
        self._open_calls = {}
        self._calls_are_known = True

    def _forget_calls(self) -> None:
        """After a message that can't be read nobody knows which results belong there."""
        self._open_calls = {}
        self._calls_are_known = False


def _says_something(parts: Sequence[Part]) -> bool:
    return any(not isinstance(part, TextPart) or part.text for part in parts)


def _with_prefix(turns: Sequence[Message]) -> tuple[Message, ...]:
    """The turns, the last of them open when it is the assistant's; an empty one says nothing."""
    if not turns or turns[-1].role is not Role.ASSISTANT or turns[-1].tool_calls:
        return tuple(turns)
    *before, last = turns
    if not _says_something(last.parts) and not last.reasoning and before:
        return tuple(before)
    return (*before, replace(last, is_prefix=True))
