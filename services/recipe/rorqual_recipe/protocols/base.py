"""What a protocol is to this service: a body in, events and errors out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rorqual_runtime.errors import ServingError

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.output.choice import Piece
from rorqual_recipe.problems import Problem
from rorqual_recipe.tokens.vocabulary import Vocabulary

MAX_BODY_PART_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class ParseLimits:
    """Bounds that depend on settings, not on the protocol."""

    max_choices: int
    has_vision: bool


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What every event of one answer repeats."""

    request_id: str
    model: str
    created_unix_s: int
    system_fingerprint: str | None
    num_choices: int
    include_usage: bool
    logprobs: bool
    vocabulary: Vocabulary


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one request, all choices together."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class RenderedError:
    """An error in the protocol's own shape."""

    http_status: int
    body_json: bytes
    retry_after_s: int = 0


class EventWriter(Protocol):
    """Writes one answer.

    Streaming, every item returned is one SSE data field; else the items are consecutive parts of
    the one JSON body. No item is much larger than MAX_BODY_PART_BYTES.
    """

    def piece(self, choice_index: int, piece: Piece) -> list[bytes]:
        """Events for what was added to a choice."""
        ...

    def finish(self, usage: TokenUsage) -> list[bytes]:
        """Events that end the answer, after the last piece of every choice."""
        ...


class ProtocolAdapter(Protocol):
    """One API dialect."""

    def parse(self, body: bytes, limits: ParseLimits) -> ParsedRequest:
        """The request, understood. Raises: RequestRefused with every problem found."""
        ...

    def render_refusal(self, problems: Sequence[Problem]) -> RenderedError:
        """A refused request's error."""
        ...

    def render_error(self, error: ServingError) -> RenderedError:
        """An error from elsewhere."""
        ...

    def make_writer(self, facts: AnswerFacts, *, stream: bool) -> EventWriter:
        """A fresh writer for one answer."""
        ...
