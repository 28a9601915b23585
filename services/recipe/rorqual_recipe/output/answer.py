"""One choice of an answer: tokens in, events out, in order and once.

Works token by token: after k tokens the same events have been made, however the k tokens arrived.
Text of one kind within one token is one delta.
"""

from collections.abc import Sequence

from rorqual_recipe.output.call_log import CallLog
from rorqual_recipe.output.calls import call_format
from rorqual_recipe.output.calls.base import TextSink
from rorqual_recipe.output.content import ContentPipe
from rorqual_recipe.output.event_buffer import EventBuffer
from rorqual_recipe.output.events import (
    AnswerEvent,
    AnswerFinished,
    ContentDelta,
    FinishReason,
    ReasoningDelta,
    TokenLogprob,
)
from rorqual_recipe.output.marks import Marks
from rorqual_recipe.output.plain_tokens import NO_PLAIN_TOKENS, PlainTables, PlainTokens
from rorqual_recipe.output.plan import AnswerPlan, mark_spellings
from rorqual_recipe.output.stages import Kind, Stages
from rorqual_recipe.output.token_queue import QueuedToken, TokenQueue
from rorqual_recipe.output.token_text import TokenText
from rorqual_recipe.tokens.vocabulary import Vocabulary

_CUT = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


class AnswerReader:
    """Turns the tokens of one choice into the events of its answer.

    num_tokens: all that were read, those of marks and stop strings too. num_reasoning_tokens: those
    of them that made reasoning. finish_reason: None until the end.
    """

    def __init__(self, vocabulary: Vocabulary, plan: AnswerPlan) -> None:
        self._plan = plan
        self._out = EventBuffer()
        self._tokens = TokenQueue()
        self._num_chars = 0
        self._marks = Marks(mark_spellings(plan), vocabulary)
        self._text = TokenText(vocabulary, self._marks)
        self._calls = self._make_calls()
        self._stages = self._make_stages()
        self._content = ContentPipe(
            plan.stops, json_mode=plan.json_mode, show=self._say, warn=self._calls.warn
        )
        self._plain: PlainTokens = NO_PLAIN_TOKENS
        self._string: TextSink | None = None
        stop_chars = frozenset(stop[0] for stop in plan.stops if stop)
        first_chars = self._text.first_chars
        self._tables = PlainTables(vocabulary, self._marks.by_id, first_chars, stop_chars)
        self._breaks = ""
        self._num_break_tokens = 0
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.finish_reason: FinishReason | None = None

    def _make_calls(self) -> CallLog:
        return CallLog(
            tools=self._plan.tools,
            id_seed=self._plan.call_id_seed,
            spell=self._marks.spell,
            emit=self._out.add,
            on_text=lambda text: self._stages.say_of_calls(text),
        )

    def _make_stages(self) -> Stages:
        make_format = call_format(self._plan.tool_format)
        tool_format = make_format(self._calls) if make_format else None
        stages = Stages(self._plan.stage, tool_format, self._tokens, self._show)
        stages.on_call = lambda: self._content.interrupt()
        stages.is_stop = lambda text: self._content.would_hit(text)
        stages.is_stopped = lambda: self._content.hit is not None
        if self._plan.starts_in_tool_calls:
            stages.open_calls()
        return stages

    @property
    def hit_stop(self) -> bool:
        """True once a stop string has ended the answer."""
        return self._content.hit is not None

    def feed(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()
    ) -> list[AnswerEvent]:
        """The next tokens, in order. Tokens after the end are ignored."""
        if self.finish_reason is not None:
            return []
        if self._plain and not self._breaks:
            events = list(map(self._plain.get, token_ids))
            if all(events):
                self._count_plain(len(events))
                return events  # type: ignore[return-value]
        return self._feed_each(token_ids, logprobs if self._plan.logprobs else ())

    def feed_text(self, text: str, num_tokens: int) -> list[AnswerEvent]:
        """Text in place of tokens: every mark counts where it is spelled."""
        if self.finish_reason is not None:
            return []
        self.num_tokens += num_tokens
        self._flush_breaks()
        self._plain, self._string = NO_PLAIN_TOKENS, None
        for _ in range(num_tokens):
            self._tokens.add(self._num_chars + self._text.num_held, None)
        self._take(self._text.of_text(text))
        self._end_on_stop()
        return self._out.take()

    def finish(self, reason: FinishReason) -> list[AnswerEvent]:
        """The end as decode tells it; nothing when a stop string was there before."""
        if self.finish_reason is not None:
            return []
        is_cut = reason in _CUT
        self._flush_breaks()
        rest = self._text.finish()
        if not (is_cut and self._stages.is_in_calls):
            self._take(rest)
        if not self.hit_stop:
            self._stages.finish(is_cut=is_cut)
            self._content.finish(is_cut=is_cut)
        self._end(FinishReason.STOP if self.hit_stop else reason)
        return self._out.take()

    def _feed_each(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]
    ) -> list[AnswerEvent]:
        self._take(self._text.end_of_text())
        events = self._out.take()
        for index, token_id in enumerate(token_ids):
            event = self._plain.get(token_id)
            if event is not None and not self._breaks:
                events.append(event)
                self._count_plain(1)
            elif self._string is not None and self._feed_string(token_id):
                events += self._out.take()
            elif not (self._plain and self._feed_plain(token_id, events)):
                self._feed_token(token_id, logprobs[index] if index < len(logprobs) else None)
                events += self._out.take()
                if self.finish_reason is not None:
                    break
        return events

    def _feed_plain(self, token_id: int, events: list[AnswerEvent]) -> bool:
        """Take a token that is plain text, but for line breaks at its end; False when it isn't.

        Such breaks wait here instead of in the stages, until something follows.
        """
        split = self._plain.split(token_id)
        if split is None:
            return False
        text, breaks = split
        if text:
            events.append(self._plain.make(self._breaks + text))
            self._count_plain(1)
            if self._num_break_tokens:
                self._count_released_breaks()
            self._breaks = breaks
        else:
            self._breaks += breaks
            self._num_break_tokens += 1
            self.num_tokens += 1
        return True

    def _feed_string(self, token_id: int) -> bool:
        """Take a token that is more of a call's string; False when it may be more than that."""
        split = self._tables.strings().split(token_id)
        if split is None or self._string is None:
            return False
        self._string(split[0])
        self.num_tokens += 1
        return True

    def _count_released_breaks(self) -> None:
        if self._stages.kind is Kind.REASONING:
            self.num_reasoning_tokens += self._num_break_tokens
        self._num_break_tokens = 0

    def _flush_breaks(self) -> None:
        """Line breaks that waited here go where a mark may follow them."""
        if self._breaks:
            for _ in range(self._num_break_tokens):
                self._tokens.add(self._num_chars, None)
            self._num_break_tokens = 0
            breaks, self._breaks = self._breaks, ""
            self._take(breaks)

    def _feed_token(self, token_id: int, logprob: TokenLogprob | None) -> None:
        self.num_tokens += 1
        self._flush_breaks()
        if self._text.is_shown(token_id):
            self._tokens.add(self._num_chars + self._text.num_held, logprob)
        self._take(self._text.of_token(token_id))
        self._end_on_stop()
        self._choose_shortcuts()

    def _take(self, text: str) -> None:
        if text:
            self._num_chars += len(text)
            self._stages.feed(text)

    def _choose_shortcuts(self) -> None:
        """Which tokens need no parser from here on."""
        self._plain, self._string = NO_PLAIN_TOKENS, None
        if self._plan.logprobs or not self._text.is_idle:
            return
        self._string = self._stages.text_sink
        if self._tokens or not self._stages.is_idle:
            return
        endings = self._stages.held_endings
        if self._stages.kind is Kind.REASONING:
            self._plain = self._tables.reasoning(endings)
        elif self._content.is_idle:
            self._plain = self._tables.content(endings)

    def _count_plain(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        if self._stages.kind is Kind.REASONING:
            self.num_reasoning_tokens += num_tokens

    def _show(self, kind: Kind, text: str, tokens: Sequence[QueuedToken], start: int) -> None:
        spelled = self._marks.spell(text)
        if kind is Kind.CONTENT:
            self._content.feed(spelled, tokens, start)
            return
        self.num_reasoning_tokens += len(tokens)
        logprobs = tuple(token.logprob for token in tokens if token.logprob is not None)
        self._out.add(ReasoningDelta(spelled, logprobs))

    def _say(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> None:
        self._out.add(ContentDelta(text, logprobs))

    def _end_on_stop(self) -> None:
        if self._content.hit is not None and self.finish_reason is None:
            self._end(FinishReason.STOP)

    def _end(self, reason: FinishReason) -> None:
        if self._calls.num_calls and reason not in _CUT:
            reason = FinishReason.TOOL_CALLS
        self.finish_reason = reason
        self._plain = NO_PLAIN_TOKENS
        self._out.add(AnswerFinished(reason, self._content.hit))
