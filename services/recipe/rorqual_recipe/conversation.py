"""The conversation as every protocol means it: no field here belongs to one protocol."""

from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of plain text; nothing in it is ever read as a special token."""

    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn."""

    role: Role
    parts: tuple[TextPart, ...]
    name: str | None = None
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """All turns in order; at least one."""

    messages: tuple[Message, ...]

    @property
    def has_tool_turns(self) -> bool:
        """True when a tool has spoken: the mark of an agent's traffic."""
        return any(message.role is Role.TOOL for message in self.messages)


class ConstraintKind(StrEnum):
    """What shape the answer is held to."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """A shape and its source text; empty for JSON_OBJECT."""

    kind: ConstraintKind
    source: str = ""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """What the client asked for; None = the model's or the service's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A protocol's body, understood."""

    model: str
    conversation: Conversation
    sampling: SamplingOptions
    stop: tuple[str, ...] = ()
    num_choices: int = 1
    stream: bool = False
    include_usage: bool = False
    constraint: OutputConstraint | None = None
    cache_salt: str = ""
    warnings: list[str] = field(default_factory=list)
