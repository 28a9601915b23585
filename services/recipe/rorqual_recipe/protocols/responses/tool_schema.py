"""Tools as clients declare them."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from rorqual_recipe.protocols.responses.schema import OPEN

MAX_GRAMMAR_CHARS = 100_000


class FunctionTool(BaseModel):
    """`function`."""

    model_config = OPEN

    type: str
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    output_schema: dict[str, Any] | None = None
    allowed_callers: list[str] | None = None


class GrammarFormat(BaseModel):
    """`format` of a custom tool."""

    model_config = OPEN

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = Field(None, max_length=MAX_GRAMMAR_CHARS)


class CustomTool(BaseModel):
    """`custom`."""

    model_config = OPEN

    type: str
    name: str
    description: str | None = None
    format: GrammarFormat | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class NamespaceTool(BaseModel):
    """`namespace`: tools with a common name and purpose."""

    model_config = OPEN

    type: str
    name: str
    description: str | None = None
    tools: list[Any]


class ToolSearchTool(BaseModel):
    """`tool_search`; execution says who searches."""

    model_config = OPEN

    type: str
    execution: Literal["client", "server"] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
