"""The content of an answer on its last stretch: stop strings, then JSON mode."""

from collections.abc import Callable, Sequence

from rorqual_recipe.output.events import TokenLogprob
from rorqual_recipe.output.json_mode import JsonFilter
from rorqual_recipe.output.stop_strings import StopMatcher
from rorqual_recipe.output.token_queue import QueuedToken


class ContentPipe:
    """Takes pieces of content with the tokens they came from; shows what is certain.

    Logprobs go with the text their token begins in; those of a stop string are dropped with it.
    """

    def __init__(
        self,
        stops: Sequence[str],
        *,
        json_mode: bool,
        show: Callable[[str, tuple[TokenLogprob, ...]], None],
        warn: Callable[[str], None],
    ) -> None:
        self._stops = StopMatcher(stops) if stops else None
        self._json = JsonFilter(warn) if json_mode else None
        self._show = show
        self._num_fed = 0
        self._unsettled: list[tuple[int, TokenLogprob]] = []

    @property
    def hit(self) -> str | None:
        """The stop string that was found."""
        return self._stops.hit if self._stops else None

    @property
    def is_idle(self) -> bool:
        """True when the next text depends on nothing before it."""
        held = self._stops is not None and (self._stops.num_held or self._stops.hit is not None)
        return not held and self._json is None and not self._unsettled

    def feed(self, text: str, tokens: Sequence[QueuedToken] = (), source_start: int = 0) -> None:
        """More content, which began at source_start of the answer."""
        for token in tokens:
            if token.logprob is not None:
                start = self._num_fed + max(0, token.start - source_start)
                self._unsettled.append((start, token.logprob))
        self._num_fed += len(text)
        if self._stops is None:
            self._pass(text, self._num_fed)
            return
        passed = self._stops.feed(text)
        num_settled = self._num_fed - self._stops.num_held
        if self._stops.hit is not None:
            num_settled = self._stops.num_passed
        self._pass(passed, num_settled)
        if self._stops.hit is not None:
            self._unsettled = []

    def would_hit(self, text: str) -> bool:
        """True when this run of one character would complete a stop string."""
        return self._stops is not None and self._stops.would_hit(text)

    def interrupt(self) -> None:
        """A tool call begins here."""
        self._flush_stops()
        if self._json is not None and self.hit is None:
            self._emit(self._json.release_before_call(), ())

    def finish(self, *, is_cut: bool) -> None:
        """The answer ends here."""
        self._flush_stops()
        if self._json is not None:
            self._emit(self._json.finish(is_cut=is_cut), ())

    def _flush_stops(self) -> None:
        if self._stops is not None and self._stops.hit is None:
            self._pass(self._stops.finish(), self._num_fed)

    def _pass(self, text: str, num_settled: int) -> None:
        settled: list[TokenLogprob] = []
        while self._unsettled and self._unsettled[0][0] < num_settled:
            settled.append(self._unsettled.pop(0)[1])
        self._emit(self._json.feed(text) if self._json else text, tuple(settled))

    def _emit(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> None:
        if text or logprobs:
            self._show(text, logprobs)
