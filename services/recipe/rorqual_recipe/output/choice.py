"""One choice of an answer: token deltas in, text and logprobs out, in order and once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rorqual_recipe.output.detokeniser import Detokeniser
from rorqual_recipe.output.stop_strings import StopMatcher
from rorqual_recipe.tokens.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of one token and of its best alternatives (id, logprob)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Piece:
    """What some tokens added to the answer."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.logprobs or self.finish_reason)


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
        self.finish_reason: str | None = None

    @property
    def hit_stop(self) -> bool:
        """True once a stop string has ended the answer."""
        return self._stops.hit is not None

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> Piece:
        """The next tokens, in order. Tokens after the end are ignored."""
        piece = Piece()
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
                self.finish_reason = piece.finish_reason = "stop"
            if self._unsettled:
                piece.logprobs += self._settle_logprobs()
        piece.text = "".join(texts)
        return piece

    def finish(self, reason: str) -> Piece:
        """The end as decode tells it; nothing when a stop string was there before."""
        if self.finish_reason is not None:
            return Piece()
        text = self._through_stops(self._detokeniser.finish())
        if not self.hit_stop:
            text += self._stops.finish()
            self._num_chars_out = self._num_chars_fed
        self.finish_reason = "stop" if self.hit_stop else reason
        return Piece(text, self._settle_logprobs(), self.finish_reason)

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
