"""Input items by type. `id` and `status` come back from earlier answers and change nothing."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from rorqual_recipe.protocols.responses.schema import OPEN

MAX_ID_CHARS = 256
MAX_NAME_CHARS = 256


class Item(BaseModel):
    """What every item may carry."""

    model_config = OPEN

    type: str | None = None
    id: str | None = None
    status: str | None = None


class MessageItem(Item):
    """Words of somebody."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Any
    phase: str | None = None


class ReasoningText(BaseModel):
    """A piece of reasoning, or of its summary."""

    model_config = OPEN

    type: str | None = None
    text: str


class ReasoningItem(Item):
    """What the model thought; content in clear, or sealed in encrypted_content."""

    summary: list[ReasoningText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class FunctionCallItem(Item):
    """A call of a function."""

    call_id: str = Field(min_length=1, max_length=MAX_ID_CHARS)
    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    arguments: str
    namespace: str | None = Field(None, max_length=MAX_NAME_CHARS)


class CustomCallItem(Item):
    """A call of a custom tool."""

    call_id: str = Field(min_length=1, max_length=MAX_ID_CHARS)
    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    input: str
    namespace: str | None = Field(None, max_length=MAX_NAME_CHARS)


class CallOutputItem(Item):
    """What a tool answered: text or parts."""

    call_id: str = Field(min_length=1, max_length=MAX_ID_CHARS)
    output: Any
    name: str | None = None
    namespace: str | None = None


class ToolSearchCallItem(Item):
    """The model looked for tools; the client searched."""

    call_id: str = Field(min_length=1, max_length=MAX_ID_CHARS)
    arguments: Any
    execution: str | None = None


class ToolSearchOutputItem(Item):
    """The tools a search has found."""

    call_id: str = Field(min_length=1, max_length=MAX_ID_CHARS)
    tools: Any
    execution: str | None = None


class AdditionalToolsItem(Item):
    """Tools the model learns about in mid-conversation."""

    role: str | None = None
    tools: Any


class ItemReference(Item):
    """An item of an earlier, stored response."""

    id: str = Field(min_length=1, max_length=MAX_ID_CHARS)


ITEM_TYPES: dict[str, type[Item]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": FunctionCallItem,
    "function_call_output": CallOutputItem,
    "custom_tool_call": CustomCallItem,
    "custom_tool_call_output": CallOutputItem,
    "tool_search_call": ToolSearchCallItem,
    "tool_search_output": ToolSearchOutputItem,
    "additional_tools": AdditionalToolsItem,
    "item_reference": ItemReference,
}

LEFT_OUT = frozenset({"web_search_call"})
"""Items that say nothing to the model: left out, with a warning."""

REFUSED = frozenset(
    {
        *("file_search_call", "computer_call", "computer_call_output", "image_generation_call"),
        *("code_interpreter_call", "local_shell_call", "local_shell_call_output", "shell_call"),
        *("shell_call_output", "apply_patch_call", "apply_patch_call_output", "mcp_list_tools"),
        *("mcp_approval_request", "mcp_approval_response", "mcp_call", "compaction"),
        *("compaction_trigger", "program", "program_output", "configuration_update"),
    }
)
"""Items of tools that run on a server, which this one does not have."""
