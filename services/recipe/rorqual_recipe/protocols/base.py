"""What a protocol is to this service: a body in, events and errors out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rorqual_runtime.errors import ServingError

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.output.events import AnswerEvent
from rorqual_recipe.problems import Problem
from rorqual_recipe.tokens.vocabulary import Vocabulary

MAX_BODY_PART_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class ParseLimits:
    """Bounds that depend on settings and model, not on the protocol.

    vocabulary_size: token ids a client names are below it; None = not checked.
    prior: what the adapter's own `prepare` found for this request.
    drop_server_tools: web search and its history are left out of Messages, else refused.
    signing_key: what thinking blocks are signed with.
    max_cache_ttl_s: the longest that a request may have its blocks kept.
    """

    max_choices: int
    has_vision: bool
    max_cache_ttl_s: int = 30 * 86_400
    vocabulary_size: int | None = None
    prior: Any = None
    drop_server_tools: bool = False
    signing_key: bytes = b""


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What every event of one answer repeats. thinks: the answer may begin with reasoning.

    signing_key: as in ParseLimits. clock: wall time in seconds, for what is not repeated.
    """

    request_id: str
    model: str
    created_unix_s: int
    system_fingerprint: str | None
    vocabulary: Vocabulary
    thinks: bool = False
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    signing_key: bytes = b""
    clock: Callable[[], float] | None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one request, all choices together. reasoning is part of completion.

    cache_miss_reason: of the choice that had most cached.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    cache_miss_reason: str = ""

    @property
    def miss_fields(self) -> dict[str, str]:
        """Why no more of the prompt was cached, as every protocol tells it; empty where nothing was
        missed."""
        return {"cache_miss_reason": self.cache_miss_reason} if self.cache_miss_reason else {}


@dataclass(frozen=True, slots=True)
class RenderedError:
    """An error in the protocol's own shape. sse_frames: what ends a begun stream with it."""

    http_status: int
    body_json: bytes
    retry_after_s: int = 0
    sse_frames: bytes = b""


class EventWriter(Protocol):
    """Writes one answer.

    Streaming, every item returned is one complete SSE frame; else the items are consecutive parts
    of the one JSON body. No item is much larger than MAX_BODY_PART_BYTES. What is written depends
    on the events and the usage only, so that a replay writes the same.
    """

    def write(
        self, choice_index: int, events: Sequence[AnswerEvent], usage: TokenUsage
    ) -> list[bytes]:
        """Frames for what was added to a choice. usage: so far."""
        ...

    def finish(self, usage: TokenUsage) -> list[bytes]:
        """Frames that end the answer, after the last event of every choice."""
        ...


@runtime_checkable
class WritesFailures(Protocol):
    """The optional side of an EventWriter whose stream ends in its own way when it fails."""

    def write_failure(self, error: ServingError, usage: TokenUsage) -> bytes:
        """Frames that end the begun stream, instead of RenderedError.sse_frames."""
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

    def make_writer(self, facts: AnswerFacts, parsed: ParsedRequest) -> EventWriter:
        """A fresh writer for one answer."""
        ...
