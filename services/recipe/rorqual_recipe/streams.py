"""State of every request between encode and its last event."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rorqual_runtime.errors import ServingError

from rorqual_recipe.choices import Choice, Delta, TakeOver, classify, delta_before, in_pieces
from rorqual_recipe.event_log import EventLog
from rorqual_recipe.output.events import AnswerEvent
from rorqual_recipe.output.sequence import Arrival
from rorqual_recipe.protocols.base import (
    EventWriter,
    ProtocolAdapter,
    RenderedError,
    TokenUsage,
    WritesFailures,
)

MAX_MESSAGE_BYTES = 256 << 10
COUNT_INTERVAL_S = 1.0


@dataclass(slots=True)
class Events:
    """What goes to the gateway for one request. usage: so far.

    num_tokens: by choice, what all data up to here was made of; empty inside a part. decode_ids:
    by choice, when one is new. take_over: which instance this comes from, 0 = the first.
    """

    request_id: str
    seq: int
    data: list[bytes]
    usage: TokenUsage
    is_last: bool = False
    finish_reasons: list[str] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    decode_ids: list[str] = field(default_factory=list)
    take_over: int = 0

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.data))


@dataclass(slots=True)
class Absorbed:
    """Outcome of a delta. has_gap: tokens before it are missing. hit_stop: it completed one."""

    events: list[Events] = field(default_factory=list)
    has_gap: bool = False
    hit_stop: bool = False


@dataclass(frozen=True, slots=True)
class StreamSource:
    """What generations are made of once more: those of all choices without their prompts, and which
    of the stream's prompts each has."""

    generations: Sequence[Any] = ()
    prompt_indices: Sequence[int] = ()


class RequestStream:
    """One request: token deltas of its choices in, protocol events out.

    taken_over: set when another instance began the answer: what the client has got of it already
    is made again, for the state of readers and writer, and not sent again.
    prompts: payloads that live as long as the stream.
    before_end: gives what the client's last event has to wait for, if anything.
    attached_s, left_s: since when somebody listens at gateway_id, and nobody does any more.
    asked_s: when a gateway last asked after it. reply: what its gateway was told at the beginning.
    """

    def __init__(
        self,
        *,
        request_id: str,
        gateway_id: str,
        adapter: ProtocolAdapter,
        writer: EventWriter,
        choices: Sequence[Choice],
        num_prompt_tokens: int,
        expires_s: float,
        log: EventLog,
        prompts: list[Any],
        source: StreamSource | None = None,
        before_end: Callable[[], Awaitable[None] | None] | None = None,
        taken_over: TakeOver | None = None,
    ) -> None:
        self.request_id = request_id
        self.gateway_id = gateway_id
        self.attached_s = self.asked_s = 0.0
        self.reply: Any = None
        self.left_s: float | None = None
        self.adapter = adapter
        self.choices = choices
        self.expires_s = expires_s
        self.log = log
        self.prompts = prompts
        self.source = source or StreamSource()
        self.before_end = before_end
        self._writer = writer
        self._num_prompt_tokens = num_prompt_tokens
        self._num_cached_tokens = 0
        self._cache_miss_reason = ""
        self.taken_over = taken_over
        self._num_behind = sum(choice.is_behind for choice in choices)
        self._next_event_seq = taken_over.next_seq if taken_over else 0
        self._known_decode_ids: list[str] = []
        self._last_usage: TokenUsage | None = None
        self._next_count_s = -math.inf

    @property
    def is_finished(self) -> bool:
        """True once every choice has ended."""
        return None not in [choice.reader.finish_reason for choice in self.choices]

    @property
    def has_begun(self) -> bool:
        """Something of it is known: tokens, or where they come from."""
        return any(choice.order.decode_id or choice.is_finished for choice in self.choices)

    @property
    def is_catching_up(self) -> bool:
        """What the client has got of a choice is still being made again."""
        return self._num_behind > 0

    @property
    def take_over(self) -> int:
        """Which instance of this answer this is; 0 = the first."""
        return self.taken_over.number if self.taken_over else 0

    @property
    def usage(self) -> TokenUsage:
        """Tokens so far, truthful at any moment."""
        num_tokens = num_reasoning_tokens = 0
        for choice in self.choices:
            num_tokens += choice.reader.num_tokens
            num_reasoning_tokens += choice.reader.num_reasoning_tokens
        last = self._last_usage
        if last is None or (
            last.completion_tokens != num_tokens
            or last.reasoning_tokens != num_reasoning_tokens
            or last.cached_tokens != self._num_cached_tokens
            or last.cache_miss_reason != self._cache_miss_reason
        ):
            last = self._last_usage = TokenUsage(
                self._num_prompt_tokens,
                self._num_cached_tokens,
                num_tokens,
                num_reasoning_tokens,
                self._cache_miss_reason,
            )
        return last

    def absorb(self, delta: Delta, decode_id: str, incarnation: int, now_s: float) -> Absorbed:
        """Take one delta: in order, once, or kept until what precedes it is here."""
        choice = self.choices[delta.choice_index]
        if choice.is_finished or not choice.order.accept_sender(decode_id, incarnation, delta.run):
            return Absorbed()
        choice.last_news_s = now_s
        arrival = classify(choice.order, delta)
        if arrival is Arrival.DUPLICATE:
            return Absorbed()
        if arrival is Arrival.EARLY:
            choice.order.keep_early(delta.seq, delta)
            return Absorbed(has_gap=True)
        if self._num_behind:
            data = self._catch_up(choice, delta)
        else:
            data = self._append(choice, delta) + self._append_kept(choice)
        return Absorbed(
            events=self._events(data, now_s),
            has_gap=choice.order.has_gap and not choice.is_finished,
            hit_stop=choice.reader.hit_stop,
        )

    def render_failure(self, error: ServingError) -> RenderedError:
        """The error that ends this request, with the frames that end its begun stream."""
        rendered = self.adapter.render_error(error)
        if isinstance(self._writer, WritesFailures):
            return replace(rendered, sse_frames=self._writer.write_failure(error, self.usage))
        return rendered

    def take_event_seq(self) -> int:
        """Number of the next event message of this request."""
        seq = self._next_event_seq
        self._next_event_seq += 1
        return seq

    def _catch_up(self, choice: Choice, delta: Delta) -> list[bytes]:
        """Take what the client has got already; all else waits until every choice is that far.

        So the writer goes on from exactly the state in which the client's frames were made.
        """
        known = delta if choice.end_delivered else delta_before(delta, choice.num_delivered)
        if known is not delta:
            choice.order.keep_early(delta.seq, delta)
        if choice.is_behind:
            self._append(choice, known)
            self._num_behind -= not choice.is_behind
        if self._num_behind:
            return []
        return [frame for each in self.choices for frame in self._append_kept(each)]

    def _append_kept(self, choice: Choice) -> list[bytes]:
        data: list[bytes] = []
        while not choice.is_finished and (kept := choice.order.pop_ready()) is not None:
            if classify(choice.order, kept) is Arrival.NEXT:
                data += self._append(choice, kept)
        return data

    def _append(self, choice: Choice, delta: Delta) -> list[bytes]:
        skip = choice.order.next_seq - delta.seq
        choice.order.next_seq = delta.seq + len(delta.token_ids)
        choice.token_ids.extend(delta.token_ids[skip:])
        if not choice.knows_cached:
            self._note_cached(choice, delta)
        data: list[bytes] = []
        for ids, logprobs in in_pieces(delta, skip):
            data += self._write(delta.choice_index, choice.reader.feed(ids, logprobs))
        if delta.finish_reason and not choice.is_finished:
            last = choice.reader.finish(delta.finish_reason)
            data += self._write(delta.choice_index, last)
        if choice.is_finished:
            choice.order.early.clear()
        return data

    def _note_cached(self, choice: Choice, delta: Delta) -> None:
        """As its first run says: a later one finds the KV of that. The most that any choice had
        cached, and why it was no more."""
        choice.knows_cached = bool(delta.num_prompt_tokens or delta.num_cached_tokens)
        num_more = delta.num_cached_tokens - self._num_cached_tokens
        if num_more > 0 or (num_more == 0 and not self._cache_miss_reason):
            self._num_cached_tokens = delta.num_cached_tokens
            self._cache_miss_reason = delta.cache_miss_reason

    def _write(self, choice_index: int, events: Sequence[AnswerEvent]) -> list[bytes]:
        return self._writer.write(choice_index, events, self.usage) if events else []

    def _events(self, data: list[bytes], now_s: float) -> list[Events]:
        """Messages for the gateway.

        An empty first one tells it that generation has begun; later ones, now and then, how many
        tokens there are, so that an answer that is given up before its end is counted.
        """
        is_last = self.is_finished
        if self._num_behind or (not (data or is_last) and now_s < self._next_count_s):
            return []
        self._next_count_s = now_s + COUNT_INTERVAL_S
        usage = self.usage
        if is_last:
            data = data + self._writer.finish(usage)
        events = [
            Events(self.request_id, self.take_event_seq(), part, usage, take_over=self.take_over)
            for part in _in_messages(data)
        ]
        self._complete(events[-1], is_last=is_last)
        return events

    def _complete(self, last: Events, *, is_last: bool) -> None:
        """What only the last message of a delta tells: how far the client is with it."""
        last.is_last = is_last
        last.num_tokens = [choice.order.next_seq for choice in self.choices]
        if any(choice.is_finished for choice in self.choices):
            last.finish_reasons = [choice.reader.finish_reason or "" for choice in self.choices]
        decode_ids = [choice.order.decode_id for choice in self.choices]
        if decode_ids != self._known_decode_ids:
            last.decode_ids = self._known_decode_ids = decode_ids


def _in_messages(data: list[bytes]) -> list[list[bytes]]:
    """Data in portions that fit into a message of the bus; at least one portion."""
    if len(data) < 2:
        return [data]
    portions: list[list[bytes]] = [[]]
    num_bytes = 0
    for item in data:
        if portions[-1] and num_bytes + len(item) > MAX_MESSAGE_BYTES:
            portions.append([])
            num_bytes = 0
        portions[-1].append(item)
        num_bytes += len(item)
    return portions
