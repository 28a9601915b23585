"""Bodies of the Messages API as clients send them.

Messages, blocks and tools stay raw here: each is validated by itself, so that one that is wrong
does not hide what is wrong with the others.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

_OPEN = ConfigDict(extra="allow", strict=True)
_MAX_STOPS = 16
MAX_MESSAGES = 16_384


def _text_or_blocks(value: Any) -> Any:
    if isinstance(value, str | list):
        return value
    raise PydanticCustomError("wrong_type", "must be a string or a list of blocks")


TextOrBlocks = Annotated[str | list[Any], BeforeValidator(_text_or_blocks)]


class CountTokensRequest(BaseModel):
    """`POST /v1/messages/count_tokens`: what makes a prompt."""

    model_config = _OPEN

    model: str
    messages: list[Any] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: TextOrBlocks | None = None
    tools: list[Any] | None = None
    tool_choice: "ToolChoiceBody | None" = None
    thinking: "ThinkingBody | None" = None
    output_config: "OutputConfig | None" = None
    output_format: "JsonFormat | None" = None

    # Accepted: they change nothing about the answer.
    cache_control: Any = None
    betas: list[str] | None = None

    # Known, not supported: refused when they would have an effect.
    container: Any = None
    mcp_servers: list[Any] | None = None


class MessagesRequest(CountTokensRequest):
    """`POST /v1/messages`. Unknown fields are kept, and reported as warnings."""

    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, le=1 << 31)
    stop_sequences: Annotated[list[str], Field(max_length=_MAX_STOPS)] | None = None
    stream: bool | None = None
    cache_salt: str | None = Field(None, max_length=256)
    cache_ttl: Any = None
    service_tier: str | None = None

    # Accepted: they change nothing about the answer.
    metadata: "Metadata | None" = None
    inference_geo: str | None = None
    diagnostics: dict[str, Any] | None = None
    user_profile_id: str | None = None

    # Known, not supported: told when it would have an effect.
    speed: Literal["standard", "fast"] | None = None


class Metadata(BaseModel):
    """`metadata`."""

    model_config = _OPEN

    user_id: str | None = None


class ThinkingBody(BaseModel):
    """`thinking`."""

    model_config = _OPEN

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=1, le=1 << 31)
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(BaseModel):
    """`output_config.format`."""

    model_config = _OPEN

    type: Literal["json_schema"]
    json_schema: Any = Field(alias="schema")


EffortWord = Literal["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]


class OutputConfig(BaseModel):
    """`output_config`."""

    model_config = _OPEN

    effort: EffortWord | None = None
    format: JsonFormat | None = None


class ToolChoiceBody(BaseModel):
    """`tool_choice`."""

    model_config = _OPEN

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ToolBody(BaseModel):
    """One tool that the client runs."""

    model_config = _OPEN

    name: str = Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_-]+$")
    input_schema: dict[str, Any]
    type: str | None = None
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None

    # Accepted: they change nothing about the answer.
    cache_control: Any = None
    eager_input_streaming: bool | None = None
    allowed_callers: list[str] | None = None


class MessageBody(BaseModel):
    """One message."""

    model_config = _OPEN

    role: Literal["user", "assistant", "system"]
    content: TextOrBlocks
