"""Items of an answer while they grow: each tells of its beginning, its growth and its end.

Growth happens once per token of every stream, so those events are put together from ready-made
text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rorqual_recipe.json_text import compact_json, json_string
from rorqual_recipe.protocols.responses.output import (
    call_item,
    message_item,
    reasoning_item,
    reasoning_part,
    text_part,
)

Emit = Callable[[str, str], None]
"""Takes an event's type and the rest of its JSON, without braces and sequence number."""


class OpenItem(Protocol):
    """An item that is not complete yet."""

    def close(self, status: str, *, before_call: bool = False) -> dict[str, Any]:
        """End it; the item as it is listed in the response."""
        ...


class _Growing:
    """What the kinds have in common."""

    def __init__(self, item_id: str, output_index: int, emit: Emit) -> None:
        self._item_id = item_id
        self._emit = emit
        self._place = f'"item_id":"{item_id}","output_index":{output_index}'
        self._index = f'"output_index":{output_index}'

    def _added(self, item: Mapping[str, Any]) -> None:
        self._emit("response.output_item.added", f'"item":{compact_json(item)},{self._index}')

    def _part(self, what: str, part: Mapping[str, Any]) -> None:
        body = f'"content_index":0,{self._place},"part":{compact_json(part)}'
        self._emit(f"response.content_part.{what}", body)

    def _ended(self, item: dict[str, Any]) -> dict[str, Any]:
        self._emit("response.output_item.done", f'"item":{compact_json(item)},{self._index}')
        return item


class OpenMessage(_Growing):
    """What the model says."""

    def __init__(self, item_id: str, output_index: int, emit: Emit) -> None:
        super().__init__(item_id, output_index, emit)
        self._texts: list[str] = []
        self._logprobs: list[Any] = []
        self._added(message_item(item_id, "in_progress", "final_answer", []))
        self._part("added", text_part("", []))

    def add(self, spelled: str, text: str, logprobs: Sequence[Any]) -> None:
        """More of it. spelled: the text as a JSON string."""
        self._texts.append(text)
        self._logprobs += logprobs
        shown = compact_json(logprobs) if logprobs else "[]"
        body = f'"content_index":0,"delta":{spelled},"logprobs":{shown},{self._place}'
        self._emit("response.output_text.delta", body)

    def close(self, status: str, *, before_call: bool = False) -> dict[str, Any]:
        """See OpenItem.close."""
        part = text_part("".join(self._texts), self._logprobs)
        done = f'"content_index":0,{self._place},"logprobs":{compact_json(self._logprobs)}'
        self._emit("response.output_text.done", f'{done},"text":{json_string(part["text"])}')
        self._part("done", part)
        phase = "commentary" if before_call else "final_answer"
        return self._ended(message_item(self._item_id, status, phase, [part]))


class OpenReasoning(_Growing):
    """What the model thinks. seal: makes what a client can bring back; None = not wanted."""

    def __init__(
        self, item_id: str, output_index: int, emit: Emit, seal: Callable[[str], str | None]
    ) -> None:
        super().__init__(item_id, output_index, emit)
        self._texts: list[str] = []
        self._seal = seal
        self._added(reasoning_item(item_id, "in_progress", None, None))
        self._part("added", reasoning_part(""))

    def add(self, spelled: str, text: str, logprobs: Sequence[Any]) -> None:
        """More of it. spelled: the text as a JSON string."""
        self._texts.append(text)
        shown = f'"logprobs":{compact_json(logprobs)},' if logprobs else ""
        body = f'"content_index":0,"delta":{spelled},{shown}{self._place}'
        self._emit("response.reasoning_text.delta", body)

    def close(self, status: str, *, before_call: bool = False) -> dict[str, Any]:
        """See OpenItem.close."""
        text = "".join(self._texts)
        done = f'"content_index":0,{self._place},"text":{json_string(text)}'
        self._emit("response.reasoning_text.done", done)
        self._part("done", reasoning_part(text))
        return self._ended(reasoning_item(self._item_id, status, text, self._seal(text)))


_DELTAS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}


class OpenCall(_Growing):
    """A call of a tool. arguments: all of them, once they are known."""

    def __init__(
        self, item_id: str, output_index: int, emit: Emit, kind: str, call: Mapping[str, str]
    ) -> None:
        super().__init__(item_id, output_index, emit)
        self._kind = kind
        self._call = call
        self._pieces: list[str] = []
        self.arguments: str | None = None
        self._added(call_item(kind, item_id, "in_progress", call, ""))

    def add(self, text: str) -> None:
        """More of the arguments; a search tells of them at its end only."""
        self._pieces.append(text)
        if self._kind in _DELTAS and text:
            name, _ = _DELTAS[self._kind]
            self._emit(f"{name}.delta", f'"delta":{json_string(text)},{self._place}')

    def close(self, status: str, *, before_call: bool = False) -> dict[str, Any]:
        """See OpenItem.close."""
        arguments = "".join(self._pieces) if self.arguments is None else self.arguments
        if self._kind in _DELTAS:
            name, member = _DELTAS[self._kind]
            spelled = json_string(arguments)
            self._emit(f"{name}.done", f'"{member}":{spelled},{self._place}')
        return self._ended(call_item(self._kind, self._item_id, status, self._call, arguments))
