"""What matches found since the start, for operators."""

from collections import Counter


class MatchCounts:
    """Blocks asked for and found, and why prefixes ended."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.num_matched = 0
        self.misses: Counter[str] = Counter()
        """Matches by what was wrong with the first block that was not there."""

    def note(self, num_asked: int, num_matched: int, reason: str) -> None:
        self.num_asked += num_asked
        self.num_matched += num_matched
        if reason:
            self.misses[reason] += 1
