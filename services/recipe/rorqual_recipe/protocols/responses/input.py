"""Input items -> messages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rorqual_runtime.errors import ErrorCode

from rorqual_recipe.conversation import Message, Role, TextPart, ToolCall, ToolKind
from rorqual_recipe.json_text import compact_json
from rorqual_recipe.problems import Problem, clip
from rorqual_recipe.protocols.notes import Notes
from rorqual_recipe.protocols.responses.content import ContentReader
from rorqual_recipe.protocols.responses.items import (
    ITEM_TYPES,
    LEFT_OUT,
    REFUSED,
    AdditionalToolsItem,
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    Item,
    MessageItem,
    ReasoningItem,
    ToolSearchCallItem,
    ToolSearchOutputItem,
)
from rorqual_recipe.protocols.responses.tools import TOOL_SEARCH, ToolReader
from rorqual_recipe.protocols.responses.turns import TurnFolder
from rorqual_recipe.sealing import SealBroken, is_ours

MAX_ITEMS = 20_000
_ROLES = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.DEVELOPER,
}


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """An item as it came, and the field that errors in it are told by."""

    path: str
    value: Any


def placed_items(value: Any, known: Mapping[str, Any], notes: Notes) -> list[PlacedItem]:
    """The body's `input` as items, references replaced by what they refer to."""
    if value is None:
        return []
    if isinstance(value, str):
        return [PlacedItem("input", {"type": "message", "role": "user", "content": value})]
    if not isinstance(value, list):
        notes.problem("input", "must be a string or a list of items")
        return []
    if not value or len(value) > MAX_ITEMS:
        message = f"at most {MAX_ITEMS} items" if value else "must hold at least one item"
        notes.problem("input", message)
        return []
    placed = [
        _resolved(PlacedItem(f"input[{index}]", item), known, notes)
        for index, item in enumerate(value)
    ]
    return [item for item in placed if item is not None]


def _resolved(item: PlacedItem, known: Mapping[str, Any], notes: Notes) -> PlacedItem | None:
    if not is_reference(item.value):
        return item
    wanted = item.value["id"]
    if wanted in known:
        return PlacedItem(item.path, known[wanted])
    message = f"Item with id '{clip(wanted, 128)}' not found; only stored responses have items"
    notes.problems.append(Problem(f"{item.path}.id", message, ErrorCode.NOT_FOUND))
    return None


def is_reference(item: Any) -> bool:
    """True for an item that only names another; its type may be left out."""
    if not isinstance(item, dict) or not isinstance(item.get("id"), str):
        return False
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and item.keys() <= {"id", "type"})


class InputReader:
    """Reads the items of one request into messages."""

    def __init__(
        self,
        notes: Notes,
        content: ContentReader,
        tools: ToolReader,
        open_seal: Callable[[str], str],
    ) -> None:
        self._notes = notes
        self._content = content
        self._tools = tools
        self._open_seal = open_seal
        self._turns = TurnFolder(notes)
        self._readers: dict[type[Item], Callable[[Any, str], None]] = {
            MessageItem: self._message,
            ReasoningItem: self._reasoning,
            FunctionCallItem: self._function_call,
            CustomCallItem: self._custom_call,
            CallOutputItem: self._output,
            ToolSearchCallItem: self._tool_search_call,
            ToolSearchOutputItem: self._tool_search_output,
            AdditionalToolsItem: self._additional_tools,
        }

    def read(self, items: Sequence[PlacedItem]) -> list[Message]:
        """The messages; what is wrong with the items is noted."""
        for item in items:
            self._item(item.value, item.path)
        return self._turns.finish()

    def _item(self, value: Any, path: str) -> None:
        kind = _type_of(value)
        if kind is None:
            self._notes.problem(
                f"{path}.type" if isinstance(value, dict) else path,
                "field required" if isinstance(value, dict) else "must be an object",
            )
            return
        model = ITEM_TYPES.get(kind)
        if model is None:
            self._unknown(kind, path)
            return
        item = self._notes.typed(model, value, path)
        if item is not None:
            self._readers[model](item, path)
        else:
            self._hold_the_place(kind, value.get("call_id"), path)

    def _hold_the_place(self, kind: str, call_id: Any, path: str) -> None:
        """What pairs with an item that is wrong is not wrong for that."""
        if isinstance(call_id, str) and kind.endswith("_call"):
            self._turns.called(ToolCall(call_id, "", ""), path)
        elif isinstance(call_id, str) and kind.endswith("_output"):
            self._turns.answered(call_id, (), path)

    def _unknown(self, kind: str, path: str) -> None:
        if kind in LEFT_OUT:
            self._notes.warn(path, f"items of type {kind} are left out")
        elif kind in REFUSED:
            self._notes.unsupported(f"{path}.type", f"items of type {kind} are not supported")
        else:
            self._notes.problem(f"{path}.type", f"unknown item type {clip(kind, 64)!r}")

    def _message(self, item: MessageItem, path: str) -> None:
        role = _ROLES[item.role]
        parts = self._content.read(item.content, f"{path}.content", role)
        if role is Role.ASSISTANT:
            self._turns.spoken(parts, path)
        else:
            self._turns.message(Message(role, parts))

    def _reasoning(self, item: ReasoningItem, path: str) -> None:
        text = self._reasoning_text(item, path)
        if text is not None:
            self._turns.thought(text, path)

    def _reasoning_text(self, item: ReasoningItem, path: str) -> str | None:
        shown = "\n".join(part.text for part in item.content) if item.content is not None else None
        if item.encrypted_content is None:
            if shown is None and item.summary:
                self._notes.warn(f"{path}.summary", "a summary is not shown to the model")
            return shown if shown is not None or item.summary else ""
        if shown and not is_ours(item.encrypted_content):
            self._notes.warn(f"{path}.encrypted_content", "not ours, content was used")
            return shown
        try:
            return self._open_seal(item.encrypted_content)
        except SealBroken as err:
            self._notes.problem(f"{path}.encrypted_content", str(err))
            return None

    def _function_call(self, item: FunctionCallItem, path: str) -> None:
        call = ToolCall(item.call_id, item.name, item.arguments, namespace=item.namespace or "")
        self._turns.called(call, path)

    def _custom_call(self, item: CustomCallItem, path: str) -> None:
        call = ToolCall(
            item.call_id, item.name, item.input, ToolKind.CUSTOM, namespace=item.namespace or ""
        )
        self._turns.called(call, path)

    def _output(self, item: CallOutputItem, path: str) -> None:
        parts = self._content.read(item.output, f"{path}.output", Role.TOOL)
        self._turns.answered(item.call_id, parts, path)

    def _tool_search_call(self, item: ToolSearchCallItem, path: str) -> None:
        given = item.arguments
        arguments = given if isinstance(given, str) else compact_json(given)
        self._turns.called(ToolCall(item.call_id, TOOL_SEARCH, arguments), path)

    def _tool_search_output(self, item: ToolSearchOutputItem, path: str) -> None:
        tools = self._tools.learn(item.tools, f"{path}.tools")
        found = [entry for tool in _listed(item.tools) for entry in _found_tool(tool)]
        shown = compact_json(found, short_exponents=True)
        self._turns.answered(item.call_id, [TextPart(shown)], path)
        if tools:
            self._turns.learned(tools)

    def _additional_tools(self, item: AdditionalToolsItem, path: str) -> None:
        tools = self._tools.learn(item.tools, f"{path}.tools")
        if tools:
            self._turns.learned(tools)


def _type_of(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind is None and "role" in value:
        return "message"
    return kind if isinstance(kind, str) else None


def _listed(value: Any) -> list[Any]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _found_tool(tool: dict[str, Any]) -> list[dict[str, Any]]:
    """A found tool as the model reads it in the search's result."""
    if tool.get("type") == "namespace":
        group = {"name": tool.get("name"), "description": tool.get("description") or ""}
        return [
            {**entry, "namespace": group}
            for inner in _listed(tool.get("tools"))
            for entry in _found_tool(inner)
        ]
    shown = ("type", "name", "description", "parameters", "strict")
    return [{name: tool.get(name) for name in shown}]
