"""Bodies of Responses as clients send them. Input items and tools are typed one by one."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

OPEN = ConfigDict(extra="allow", strict=True)
_INT64_MAX = (1 << 63) - 1
MAX_METADATA_PAIRS = 16


class JsonSchemaFormat(BaseModel):
    """`text.format` of type json_schema."""

    model_config = OPEN

    type: Literal["json_schema"]
    name: str = Field(min_length=1, max_length=64)
    json_schema: Any = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class PlainFormat(BaseModel):
    """`text.format` of the types that need nothing else; all are named where one is unknown."""

    model_config = OPEN

    type: Literal["text", "json_object", "json_schema"]


class TextOptions(BaseModel):
    """`text`. The format is typed by its `type`."""

    model_config = OPEN

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(BaseModel):
    """`reasoning`. effort: a word, or beyond the protocol a number from 1 to 100."""

    model_config = OPEN

    effort: Any = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    budget_tokens: int | None = Field(None, ge=1)


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = OPEN

    include_obfuscation: bool | None = None


_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


class ResponsesRequest(BaseModel):
    """`POST /v1/responses`. Unknown fields are kept, and reported as warnings."""

    model_config = OPEN

    model: str
    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = Field(None, min_length=1, max_length=256)
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = Field(None, max_length=32)
    metadata: dict[_Key, _Value] | None = Field(None, max_length=MAX_METADATA_PAIRS)

    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = Field(None, ge=1)

    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    truncation: Literal["auto", "disabled"] | None = None

    # Repeated in the answer; they change nothing else.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None

    # Beyond the protocol, as in Chat Completions.
    top_k: int | None = Field(None, ge=-1, le=1 << 31)
    min_p: float | None = Field(None, ge=0, lt=1)
    seed: int | None = Field(None, ge=-_INT64_MAX - 1, le=_INT64_MAX)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    ignore_eos: bool | None = None
    cache_salt: str | None = Field(None, max_length=256)
    cache_ttl: Any = None

    # Known, not offered here: refused when they would have an effect.
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
