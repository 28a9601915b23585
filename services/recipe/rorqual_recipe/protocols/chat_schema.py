"""Bodies of Chat Completions as clients send them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

_OPEN = ConfigDict(extra="allow", strict=True)
_INT64_MAX = (1 << 63) - 1


def _kind(value: Any) -> str | None:
    kinds = {str: "<text>", list: "<list>", type(None): "<null>"}
    return kinds.get(type(value))


def _text_or(items: Any, expected: str) -> Any:
    return Annotated[
        Annotated[str, Tag("<text>")]
        | Annotated[items, Tag("<list>")]
        | Annotated[None, Tag("<null>")],
        Discriminator(
            _kind, custom_error_type="wrong_type", custom_error_message=f"must be {expected}"
        ),
    ]


class ContentPart(BaseModel):
    """One part of a message; which fields count depends on `type`."""

    model_config = _OPEN

    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(BaseModel):
    """One message of any role."""

    model_config = _OPEN

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: _text_or(list[ContentPart], "a string or a list of parts") = None  # type: ignore[valid-type]
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = _OPEN

    include_usage: bool | None = None


class JsonSchemaFormat(BaseModel):
    """`response_format.json_schema`."""

    model_config = _OPEN

    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """`response_format`."""

    model_config = _OPEN

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class ChatRequest(BaseModel):
    """`POST /v1/chat/completions`. Unknown fields are kept, and reported as warnings."""

    model_config = _OPEN

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=1 << 31)
    min_p: float | None = Field(None, ge=0, lt=1)
    seed: int | None = Field(None, ge=-_INT64_MAX - 1, le=_INT64_MAX)
    n: int | None = Field(None, ge=1)
    stop: _text_or(  # type: ignore[valid-type]
        Annotated[list[str], Field(max_length=16)], "a string or a list of strings"
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    ignore_eos: bool | None = None
    cache_salt: str | None = Field(None, max_length=256)

    # Accepted: they change nothing about the answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None

    # Known, not supported yet: refused when they would have an effect.
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
