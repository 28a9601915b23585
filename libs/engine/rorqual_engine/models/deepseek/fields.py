"""Typed reading of a parsed config.json, with errors that name the key."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rorqual_engine.errors import CorruptModel


class Fields:
    """One JSON object; path is the prefix of its keys in messages."""

    def __init__(self, raw: dict[str, Any], path: str = "") -> None:
        self.raw, self.path = raw, path

    def check(self, is_right: bool, key: str, fault: str) -> None:
        """Raises: CorruptModel."""
        if not is_right:
            raise CorruptModel("config.json", f"{self.path}{key} {fault}")

    def _required(self, key: str, default: object) -> Any:
        value = self.raw.get(key)
        if value is None:
            self.check(default is not None, key, "is missing")
            return default
        return value

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._required(key, default)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        self.check(is_whole and value >= least, key, f"must be a whole number >= {least}")
        return int(value)

    def optional_whole(self, key: str) -> int | None:
        return None if self.raw.get(key) is None else self.whole(key, least=0)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._required(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        self.check(is_number and value > 0, key, "must be a number > 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._required(key, default)
        self.check(isinstance(value, bool), key, "must be true or false")
        return bool(value)

    def wholes(self, key: str, default: list[int] | None = None) -> list[int]:
        value = self._required(key, default)
        is_list = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
        self.check(is_list, key, "must be a list of whole numbers >= 0")
        return list(value)

    def words(self, key: str) -> list[str] | None:
        value = self.raw.get(key)
        if value is None:
            return None
        is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
        self.check(is_list, key, "must be a list of strings")
        return list(value)

    def layer_ids(self, key: str, num_layers: int) -> tuple[int, ...]:
        """Ascending layer numbers; absent = none."""
        ids = self.wholes(key, [])
        is_ascending = all(a < b for a, b in pairwise(ids))
        is_inside = all(index < num_layers for index in ids)
        self.check(is_ascending and is_inside, key, f"must ascend and stay below {num_layers}")
        return tuple(ids)

    def ids(self, key: str) -> tuple[int, ...]:
        """A token id, a list of them, or nothing."""
        value = self.raw.get(key)
        if value is None:
            return ()
        return tuple(self.wholes(key)) if isinstance(value, list) else (self.whole(key, least=0),)

    def group(self, key: str) -> Fields:
        value = self._required(key, None)
        self.check(isinstance(value, dict), key, "must be an object")
        return Fields(value, f"{self.path}{key}.")

    def optional_group(self, key: str) -> dict[str, Any] | None:
        return None if self.raw.get(key) is None else self.group(key).raw
