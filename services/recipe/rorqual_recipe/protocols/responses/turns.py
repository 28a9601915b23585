"""Input items folded into turns: what the assistant thought, said and called is one message."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rorqual_recipe.conversation import Message, Part, Role, Tool, ToolCall
from rorqual_recipe.problems import clip
from rorqual_recipe.protocols.notes import Notes

_SHOWN_ID_CHARS = 128


@dataclass(slots=True)
class _Call:
    """A call, where it came from, and its result once that is known."""

    path: str
    call: ToolCall
    result: Message | None = None


@dataclass(slots=True)
class _AssistantTurn:
    """The turn being put together. has_results: a tool has answered, no more can be said."""

    reasoning: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    calls: dict[str, _Call] = field(default_factory=dict)
    is_open: bool = False
    has_results: bool = False


class TurnFolder:
    """Takes items in order and gives the messages they make."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._messages: list[Message] = []
        self._turn = _AssistantTurn()
        self._learned: list[Message] = []

    def message(self, message: Message) -> None:
        """Somebody else's words: the assistant's turn is over."""
        self._close()
        self._messages.append(message)

    def spoken(self, parts: Sequence[Part], path: str) -> None:
        """The assistant's words."""
        turn = self._assistant()
        if turn.calls:
            self._notes.warn(path, "words after a call were put before it")
        turn.parts += parts

    def thought(self, text: str, path: str) -> None:
        """The assistant's reasoning, if it is any; after words it begins a turn of its own."""
        if not text:
            return
        if self._turn.parts and not self._turn.calls:
            self._close()
        turn = self._assistant()
        if turn.calls:
            self._notes.warn(path, "reasoning after a call was put before it")
        turn.reasoning.append(text)

    def called(self, call: ToolCall, path: str) -> None:
        """A call by the assistant."""
        turn = self._assistant()
        if call.call_id in turn.calls:
            self._notes.problem(f"{path}.call_id", f"Duplicate 'call_id': {_shown(call.call_id)}.")
            return
        turn.calls[call.call_id] = _Call(path, call)

    def answered(self, call_id: str, parts: Sequence[Part], path: str) -> None:
        """A tool's result; it follows the calls of its turn, in any order."""
        known = self._turn.calls.get(call_id)
        if known is None:
            message = f"No tool call found for tool output with call_id {_shown(call_id)}."
            self._notes.problem(f"{path}.call_id", message)
            return
        if known.result is not None:
            self._notes.problem(f"{path}.call_id", f"Duplicate output for {_shown(call_id)}.")
        known.result = Message(Role.TOOL, tuple(parts), tool_call_id=call_id)
        self._turn.has_results = True

    def learned(self, tools: Sequence[Tool]) -> None:
        """Tools the model knows from here on."""
        message = Message(Role.SYSTEM, declared_tools=tuple(tools))
        if self._turn.is_open:
            self._learned.append(message)
        else:
            self._messages.append(message)

    def finish(self) -> list[Message]:
        """All messages."""
        self._close()
        return self._messages

    def _assistant(self) -> _AssistantTurn:
        if self._turn.has_results:
            self._close()
        self._turn.is_open = True
        return self._turn

    def _close(self) -> None:
        turn, self._turn = self._turn, _AssistantTurn()
        if not turn.is_open:
            return
        reasoning = "\n".join(turn.reasoning) if turn.reasoning else None
        calls = tuple(entry.call for entry in turn.calls.values())
        spoken = Message(Role.ASSISTANT, tuple(turn.parts), tool_calls=calls, reasoning=reasoning)
        self._messages.append(spoken)
        for entry in turn.calls.values():
            if entry.result is None:
                shown = _shown(entry.call.call_id)
                self._notes.problem(entry.path, f"No tool output found for tool call {shown}.")
            else:
                self._messages.append(replace(entry.result, name=entry.call.name))
        self._messages += self._learned
        self._learned = []


def _shown(call_id: str) -> str:
    return clip(call_id, _SHOWN_ID_CHARS)
