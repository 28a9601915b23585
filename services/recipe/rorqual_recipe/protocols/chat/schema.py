"""Bodies of Chat Completions as clients send them.

Messages and tools stay raw in the request: each is validated by itself, so that one that is wrong
does not hide what is wrong with the others.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rorqual_recipe.protocols.chat.unions import text_or

OPEN = ConfigDict(extra="allow", strict=True)
INT64_MAX = (1 << 63) - 1
MAX_STOPS = 16
MAX_MESSAGES = 16_384
MAX_TOOLS = 1024
MAX_BIASES = 4096


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = OPEN

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(BaseModel):
    """`response_format.json_schema`."""

    model_config = OPEN

    name: str | None = None
    description: str | None = None
    json_schema: Any = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """`response_format`."""

    model_config = OPEN

    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: JsonSchemaFormat | None = None
    regex: str | None = None


class StructuredOutputs(BaseModel):
    """`structured_outputs`: one shape, as engines name it."""

    model_config = OPEN

    json_schema: Any = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class ThinkingBody(BaseModel):
    """`thinking`."""

    model_config = OPEN

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, le=1 << 31)


class TemplateSwitches(BaseModel):
    """`chat_template_kwargs`: the switches that engines hand to templates."""

    model_config = OPEN

    thinking: bool | None = None
    enable_thinking: bool | None = None


class SamplingFields(BaseModel):
    """What Chat Completions and Completions share."""

    model_config = OPEN

    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=1 << 31)
    min_p: float | None = Field(None, ge=0, lt=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: dict[str, float] | None = Field(None, max_length=MAX_BIASES)
    min_tokens: int | None = Field(None, ge=0)
    seed: int | None = Field(None, ge=-INT64_MAX - 1, le=INT64_MAX)
    n: int | None = Field(None, ge=1)
    stop: text_or(  # type: ignore[valid-type]
        Annotated[list[str], Field(max_length=MAX_STOPS)], "a string or a list of strings"
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = Field(None, max_length=256)
    cache_ttl: Any = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    # Accepted: they change nothing about the answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None

    # Known, not supported: refused when it would have an effect.
    stop_token_ids: list[int] | None = None


class ChatRequest(SamplingFields):
    """`POST /v1/chat/completions`. Unknown fields are kept, and reported as warnings."""

    messages: list[Any] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Any] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = Field(None, max_length=MAX_TOOLS)
    function_call: Any = None
    thinking: ThinkingBody | None = None
    reasoning_effort: Any = None
    chat_template_kwargs: TemplateSwitches | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    # Accepted: they change nothing about the answer.
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prediction: Any = None
    verbosity: Literal["low", "medium", "high"] | None = None

    # Known, not supported: refused when they would have an effect.
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    echo: bool | None = None


class ChatMessage(BaseModel):
    """One message of any role."""

    model_config = OPEN

    role: Literal["system", "developer", "user", "assistant", "tool", "function", "latest_reminder"]
    content: text_or(list[Any], "a string or a list of parts") = None  # type: ignore[valid-type]
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    prefix: bool | None = None

    # Answers carry them; they say nothing to the model.
    audio: Any = None
    annotations: list[Any] | None = None
    reasoning_details: list[Any] | None = None


class FunctionCallBody(BaseModel):
    """`function` of a call."""

    model_config = OPEN

    name: str
    arguments: str


class CustomCallBody(BaseModel):
    """`custom` of a call."""

    model_config = OPEN

    name: str
    input: str


class ToolCallBody(BaseModel):
    """One of a message's `tool_calls`. index: clients send back what streams number."""

    model_config = OPEN

    id: str
    type: Literal["function", "custom"]
    function: FunctionCallBody | None = None
    custom: CustomCallBody | None = None
    index: int | None = None


class FunctionBody(BaseModel):
    """`function` of a tool, and each of `functions`."""

    model_config = OPEN

    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


class GrammarBody(BaseModel):
    """`grammar` of a custom tool's format."""

    model_config = OPEN

    syntax: Literal["lark", "regex"]
    definition: str = Field(min_length=1, max_length=100_000)


class CustomFormat(BaseModel):
    """`format` of a custom tool."""

    model_config = OPEN

    type: Literal["text", "grammar"]
    grammar: GrammarBody | None = None


class CustomBody(BaseModel):
    """`custom` of a tool."""

    model_config = OPEN

    name: str
    description: str | None = None
    format: CustomFormat | None = None


class ToolBody(BaseModel):
    """One of `tools`."""

    model_config = OPEN

    type: Literal["function", "custom"]
    function: FunctionBody | None = None
    custom: CustomBody | None = None


class TextContent(BaseModel):
    """A `text` part."""

    model_config = OPEN

    type: str
    text: str


class RefusalContent(BaseModel):
    """A `refusal` part: what an assistant said instead."""

    model_config = OPEN

    type: str
    refusal: str


class ImageUrl(BaseModel):
    """`image_url` of an image part."""

    model_config = OPEN

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImageContent(BaseModel):
    """An `image_url` part."""

    model_config = OPEN

    type: str
    image_url: ImageUrl


class FileFields(BaseModel):
    """A file. file_data: a data URL, or base64 alone."""

    model_config = OPEN

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FileContent(FileFields):
    """A `file` part: the file in a field of its own, or its fields in the part."""

    type: str
    file: FileFields | None = None
