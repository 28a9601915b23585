"""What an answer consists of, in the order it is made. Every protocol's writer reads these.

For any split of the same tokens into batches the concatenation of the deltas is the same, token
by token: after k tokens the same events have been made, however the k tokens arrived.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of one token and of its best alternatives (id, logprob)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of what the model says."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallBegan:
    """A call of a tool: calls of one choice count from 0. call_id: the same in every replay.

    name, namespace: as declared by the client. is_custom: its arguments are free text.
    """

    index: int
    call_id: str
    name: str
    namespace: str = ""
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class ToolArgumentsDelta:
    """More of a call's arguments: JSON text (or free text of a custom tool)."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """The call is complete. arguments: all of its deltas together.

    problem: None when the arguments are valid JSON (and fit the declared parameters); else what
    is wrong with them. is_cut: the answer ended inside the call.
    """

    index: int
    arguments: str
    problem: str | None = None
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class OutputWarning:
    """Something about the answer that the caller should know."""

    message: str


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class AnswerFinished:
    """The last event of a choice. stop_string: the stop sequence that ended it, if one did."""

    reason: FinishReason
    stop_string: str | None = None


AnswerEvent = (
    ReasoningDelta
    | ContentDelta
    | ToolCallBegan
    | ToolArgumentsDelta
    | ToolCallEnded
    | OutputWarning
    | AnswerFinished
)
