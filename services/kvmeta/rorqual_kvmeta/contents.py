"""Whether a prompt that nothing was stored of begins like one of another namespace.

Only counted, for operators: no answer tells a tenant what others have stored. Not in Redis: it is
rebuilt from what is registered.
"""

from collections import OrderedDict


class FirstBlocks:
    """The key of the first block by its key in no namespace; the latest ones only."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._first: OrderedDict[bytes, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._first)

    def note(self, content_key: bytes, first_key: bytes) -> None:
        """A chain that begins with this block was stored."""
        self._first.pop(content_key, None)
        self._first[content_key] = first_key
        while len(self._first) > self._max_entries:
            self._first.popitem(last=False)

    def elsewhere(self, content_key: bytes, first_key: bytes) -> bytes | None:
        """The first block of a chain that begins alike under another key, if one is known."""
        other = self._first.get(content_key)
        return None if other == first_key else other
