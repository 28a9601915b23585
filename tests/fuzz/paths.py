"""Whether a problem names a place of the body that it is about."""

from __future__ import annotations

import re
from typing import Any

MAX_KEY_CHARS = 64
_INDEX = re.compile(r"\[(\d+)\]")


def leads_into(body: Any, path: str) -> bool:
    """True when the path's steps are there; only a last one may be missing.

    Names may hold dots and brackets, and long ones are cut, so every reading counts.
    """
    if not path:
        return True
    index = _INDEX.match(path)
    if isinstance(body, list) and index:
        at, rest = int(index[1]), path[index.end() :]
        return leads_into(body[at], rest) if at < len(body) else not rest
    if not isinstance(body, dict):
        return False
    name = path.removeprefix(".")
    known = [(value, key[:MAX_KEY_CHARS]) for key, value in body.items()]
    if any(_begins(name, key) and leads_into(value, name[len(key) :]) for value, key in known):
        return True
    return not re.search(r"[.\[]", name)


def _begins(path: str, key: str) -> bool:
    """Whether the key, which may be empty, is the first name of the path."""
    return path.startswith(key) and path[len(key) : len(key) + 1] in ("", ".", "[")
