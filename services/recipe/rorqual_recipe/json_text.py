"""Strings as JSON: the one call of the standard library's encoder that every writer makes."""

from collections.abc import Callable
from json.encoder import encode_basestring  # type: ignore[attr-defined]

json_string: Callable[[str], str] = encode_basestring
"""A string with its quotes; only what JSON must escape is escaped."""
