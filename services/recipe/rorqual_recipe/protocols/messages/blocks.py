"""Content blocks of the Messages API, one model each."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from rorqual_recipe.protocols.messages.schema import TextOrBlocks

_OPEN = ConfigDict(extra="allow", strict=True)


class Block(BaseModel):
    """What all blocks have. cache_control: accepted; every prompt is cached as far as it can be."""

    model_config = _OPEN

    type: str
    cache_control: Any = None


class TextBlock(Block):
    """Plain text. citations: of an earlier answer; they are not part of the prompt."""

    text: str
    citations: Any = None


class SourceBody(BaseModel):
    """Where an image or a document comes from; which fields count depends on `type`."""

    model_config = _OPEN

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: TextOrBlocks | None = None


class ImageBlock(Block):
    """A picture."""

    source: SourceBody


class DocumentBlock(Block):
    """A document, of which the text is read."""

    source: SourceBody
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None


class SearchResultBlock(Block):
    """What a search of the client found."""

    source: str
    title: str
    content: list[Any]
    citations: dict[str, Any] | None = None


class ThinkingBlock(Block):
    """What the assistant thought."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block):
    """Thinking that only its maker can read."""

    data: str


class ToolUseBlock(Block):
    """A call the assistant made."""

    id: str
    name: str
    input: Any
    caller: Any = None
    toolset_name: str | None = None


class ToolResultBlock(Block):
    """What a tool answered."""

    tool_use_id: str
    content: TextOrBlocks | None = None
    is_error: bool | None = None
    toolset_name: str | None = None


class ToolReferenceBlock(Block):
    """A deferred tool that a search of the client found."""

    tool_name: str


class AddedTool(BaseModel):
    """`tool_addition.tool`."""

    model_config = _OPEN

    type: Literal["tool_reference"]
    name: str


class ToolAdditionBlock(Block):
    """A deferred tool that a system message declares."""

    tool: AddedTool


BLOCKS: dict[str, type[Block]] = {
    "text": TextBlock,
    "image": ImageBlock,
    "document": DocumentBlock,
    "search_result": SearchResultBlock,
    "thinking": ThinkingBlock,
    "redacted_thinking": RedactedThinkingBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
    "tool_reference": ToolReferenceBlock,
    "tool_addition": ToolAdditionBlock,
}
SERVER_TOOL_BLOCKS = frozenset(
    (
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "container_upload",
    )
)
