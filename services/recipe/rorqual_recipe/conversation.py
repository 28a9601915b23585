"""The conversation as every protocol means it: no field here belongs to one protocol."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """Who speaks. Encodings decide how a developer's words are printed."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    REMINDER = "latest_reminder"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of plain text; nothing in it is ever read as a special token."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image in its place. Exactly one of url (http or https) and data_base64 is set.

    param: the field it came from, for errors that are found later.
    """

    param: str
    url: str | None = None
    media_type: str | None = None
    data_base64: str | None = None
    detail: str = "high"


Part = TextPart | ImagePart


class ToolKind(StrEnum):
    """FUNCTION takes a JSON object, CUSTOM takes free text."""

    FUNCTION = "function"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the model may call.

    name: as the client calls it; namespace: the group it is declared in, "" for none.
    parameters: JSON Schema of the arguments, in the client's key order.
    grammar: (syntax, definition) of a CUSTOM tool's input, syntax `lark` or `regex`.
    deferred: known, but not part of the prompt until a message declares it.
    param: the field that holds its parameters (or a CUSTOM tool's grammar), for errors found later.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    kind: ToolKind = ToolKind.FUNCTION
    namespace: str = ""
    namespace_description: str = ""
    grammar: tuple[str, str] | None = None
    deferred: bool = False
    param: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made. arguments: the client's original spelling, not always valid JSON.

    For a CUSTOM tool `arguments` is the free text itself.
    """

    call_id: str
    name: str
    arguments: str
    kind: ToolKind = ToolKind.FUNCTION
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn.

    reasoning: what the assistant thought before it spoke; None when unknown, "" when nothing.
    is_prefix: the last message, an assistant's, which the answer continues.
    declared_tools: tools that the model learns about here (deferred ones).
    stays_in_place: a system message between turns that no encoding may move to the head.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    is_prefix: bool = False
    is_error: bool = False
    declared_tools: tuple[Tool, ...] = ()
    stays_in_place: bool = False


class ToolChoiceMode(StrEnum):
    """Whether the answer may or must call tools. REQUIRED with names = one of those."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """names: tools that may be called, as `name` or `namespace::name`; empty = all declared."""

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    names: tuple[str, ...] = ()
    parallel: bool = True


class Effort(StrEnum):
    """How long the model should think."""

    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Thinking:
    """enabled: None = the model's default. budget: tokens of thinking, None = no bound.

    effort_percent: the effort as a number from 1 to 100, where the client gave one.
    """

    enabled: bool | None = None
    effort: Effort | None = None
    budget_tokens: int | None = None
    effort_percent: int | None = None


class ConstraintKind(StrEnum):
    """What shape the answer is held to."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    EBNF = "ebnf"
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """A shape and its source text; empty for JSON_OBJECT. param: the field it came from."""

    kind: ConstraintKind
    source: str = ""
    param: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """All turns in order; at least one. response_format: None = free text."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    thinking: Thinking = Thinking()
    response_format: OutputConstraint | None = None

    @property
    def has_tool_turns(self) -> bool:
        """True when a tool has spoken: the mark of an agent's traffic."""
        return any(message.role is Role.TOOL for message in self.messages)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """What the client asked for; None = the model's or the service's default.

    logit_bias: (token id, bias in [-100, 100]).
    lowers_max_tokens: max_tokens above the model's own bound is lowered to it, else refused.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    lowers_max_tokens: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0


RawPrompt = str | tuple[int, ...]
"""A text, or token ids."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A protocol's body, understood.

    raw_prompts: prompts to be continued as they are (Completions); the conversation is empty then.
    num_choices counts the choices of all of them, those of the first prompt first.
    adds_special_tokens: a raw text gets what the tokenizer puts around texts.
    echo: what the protocol's writer needs to repeat of the request; its own type.
    prompt_param: the field that a prompt which is too long came from.
    truncates: the oldest turns may be left out to make the prompt fit.
    priority: in the line for prefill; higher goes earlier.
    cache_ttl_s: how long the blocks of prompt and answer are kept; 0 = as their traffic class says.
    """

    model: str
    conversation: Conversation
    sampling: SamplingOptions
    stop: tuple[str, ...] = ()
    num_choices: int = 1
    stream: bool = False
    include_usage: bool = False
    cache_salt: str = ""
    warnings: list[str] = field(default_factory=list)
    raw_prompts: tuple[RawPrompt, ...] = ()
    adds_special_tokens: bool = True
    echo: Any = None
    prompt_param: str = "messages"
    truncates: bool = False
    priority: int = 0
    cache_ttl_s: int = 0
