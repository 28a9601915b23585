"""Stop strings found across any portions of text."""

from collections.abc import Sequence


class _Automaton:
    """Knuth-Morris-Pratt matcher of one stop string; constant time a character.

    num_matched: length of the longest beginning of the stop string that the text ends with.
    """

    __slots__ = ("_failure", "_stop", "num_matched")

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._failure = _failure_table(stop)
        self.num_matched = 0

    def advance(self, char: str) -> bool:
        """Take one character; True when it completes the stop string, and then never again."""
        stop, matched = self._stop, self.num_matched
        while matched and stop[matched] != char:
            matched = self._failure[matched - 1]
        if stop[matched] == char:
            matched += 1
        self.num_matched = matched
        return matched == len(stop)


def _failure_table(stop: str) -> list[int]:
    """For each beginning of `stop`: its longest proper ending that `stop` begins with."""
    table = [0] * len(stop)
    matched = 0
    for index in range(1, len(stop)):
        while matched and stop[index] != stop[matched]:
            matched = table[matched - 1]
        if stop[index] == stop[matched]:
            matched += 1
        table[index] = matched
    return table


class StopMatcher:
    """Lets text through up to the first stop string.

    The hit is the one that ends first; of several that end together, the one that is listed first.
    So the answer depends on the characters only, never on how they arrive. At most len(stop) - 1
    characters are held back, and only while they could be the beginning of a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = list(dict.fromkeys(stop for stop in stops if stop))
        self._automata = [_Automaton(stop) for stop in self._stops]
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._held = ""
        self.hit: str | None = None
        self.num_passed = 0

    @property
    def first_chars(self) -> frozenset[str]:
        """Characters that a stop string may begin with."""
        return self._first_chars

    @property
    def num_held(self) -> int:
        """Characters held back right now."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Characters that are certain to belong to the answer. After a hit: nothing."""
        passed = self._feed(text)
        self.num_passed += len(passed)
        return passed

    def _feed(self, text: str) -> str:
        if self.hit is not None:
            return ""
        if not self._held and self._first_chars.isdisjoint(text):
            return text
        window = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            self.hit = self._advance(char)
            if self.hit is not None:
                self._held = ""
                return window[: end - len(self.hit)]
        num_held = max(automaton.num_matched for automaton in self._automata)
        self._held = window[len(window) - num_held :]
        return window[: len(window) - num_held]

    def would_hit(self, text: str) -> bool:
        """True when this run of one character, coming next, would complete a stop string."""
        if not self._held and self._first_chars.isdisjoint(text):
            return False
        text = text[: max(map(len, self._stops))]  # a longer run hits no later
        matched = [automaton.num_matched for automaton in self._automata]
        is_hit = any(self._advance(char) is not None for char in text)
        for automaton, num_matched in zip(self._automata, matched, strict=True):
            automaton.num_matched = num_matched
        return is_hit

    def finish(self) -> str:
        """What was held back, now that no stop string can follow."""
        held, self._held = self._held, ""
        self.num_passed += len(held)
        return held

    def _advance(self, char: str) -> str | None:
        """The first listed stop string that this character completes."""
        hit = None
        for stop, automaton in zip(self._stops, self._automata, strict=True):
            if automaton.advance(char) and hit is None:
                hit = stop
        return hit
