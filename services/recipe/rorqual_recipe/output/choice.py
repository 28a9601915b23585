"""One choice of an answer: token deltas in, text and logprobs out, in order and once."""

from collections.abc import Sequence

from rorqual_recipe.output.detokeniser import Detokeniser
from rorqual_recipe.output.events import (
    AnswerEvent,
    AnswerFinished,
    ContentDelta,
    FinishReason,
    TokenLogprob,
)
from rorqual_recipe.output.stop_strings import StopMatcher
from rorqual_recipe.tokens.vocabulary import Vocabulary


class ChoiceText:
    """Turns the tokens of one choice into pieces of its answer.

    Works token by token, so any split of the same tokens gives the same answer.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str], *, logprobs: bool) -> None:
        self._special_ids = vocabulary.special
        self._detokeniser = Detokeniser(vocabulary)
        self._stops = StopMatcher(stops)
        self._logprobs = logprobs
        self._unsettled: list[tuple[int, TokenLogprob]] = []
        self._num_chars_fed = 0
        self._num_chars_out = 0
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None

    @property
    def hit_stop(self) -> bool:
        """True once a stop string has ended the answer."""
        return self._stops.hit is not None

    def feed(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()
    ) -> list[AnswerEvent]:
        """The next tokens, in order. Tokens after the end are ignored."""
        if self.finish_reason is not None:
            return []
        settled: list[TokenLogprob] = []
        texts: list[str] = []
        for index, token_id in enumerate(token_ids):
            if self.finish_reason is not None:
                break
            self.num_tokens += 1
            start = self._num_chars_fed
            text = self._through_stops(self._detokeniser.feed(token_id))
            if text:
                texts.append(text)
            if self._logprobs and index < len(logprobs) and token_id not in self._special_ids:
                self._unsettled.append((start, logprobs[index]))
            if self.hit_stop:
                self.finish_reason = FinishReason.STOP
            if self._unsettled:
                settled += self._settle_logprobs()
        return self._events("".join(texts), settled)

    def finish(self, reason: FinishReason) -> list[AnswerEvent]:
        """The end as decode tells it; nothing when a stop string was there before."""
        if self.finish_reason is not None:
            return []
        text = self._through_stops(self._detokeniser.finish())
        if not self.hit_stop:
            text += self._stops.finish()
            self._num_chars_out = self._num_chars_fed
        self.finish_reason = FinishReason.STOP if self.hit_stop else reason
        return self._events(text, self._settle_logprobs())

    def _events(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        if text or logprobs:
            events.append(ContentDelta(text, tuple(logprobs)))
        if self.finish_reason is not None:
            events.append(AnswerFinished(self.finish_reason, self._stops.hit))
        return events

    def _through_stops(self, text: str) -> str:
        self._num_chars_fed += len(text)
        passed = self._stops.feed(text)
        self._num_chars_out += len(passed)
        return passed

    def _settle_logprobs(self) -> list[TokenLogprob]:
        """Logprobs of tokens whose text is certain; after a stop, the stop's own are dropped."""
        if self.hit_stop:
            settled = [entry for start, entry in self._unsettled if start < self._num_chars_out]
            self._unsettled = []
            return settled
        if not self._stops.num_held:
            settled = [entry for _, entry in self._unsettled]
            self._unsettled = []
            return settled
        count = 0
        while count < len(self._unsettled) and self._unsettled[count][0] < self._num_chars_out:
            count += 1
        settled = [entry for _, entry in self._unsettled[:count]]
        del self._unsettled[:count]
        return settled
