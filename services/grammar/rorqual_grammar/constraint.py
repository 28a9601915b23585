"""What the service compiles, and what can be wrong with it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum


class ConstraintKind(StrEnum):
    """Language of a constraint's source."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    EBNF = "ebnf"
    STRUCTURAL_TAG = "structural_tag"


PARAM_BY_KIND = {
    ConstraintKind.JSON_SCHEMA: "response_format.json_schema.schema",
    ConstraintKind.JSON_OBJECT: "response_format",
    ConstraintKind.REGEX: "response_format.regex",
    ConstraintKind.EBNF: "response_format.grammar",
    ConstraintKind.STRUCTURAL_TAG: "tools",
}
"""Request field to blame in an error where nobody says which."""


@dataclass(frozen=True)
class Constraint:
    """One thing to compile."""

    kind: ConstraintKind
    source: str
    """Schema, pattern or grammar text; empty for JSON_OBJECT."""
    param: str = ""
    """The caller's own field, for errors; no part of what is compiled."""

    @property
    def key(self) -> bytes:
        """16 bytes, equal where kind and source are."""
        digest = hashlib.blake2b(self.kind.encode() + b"\0", digest_size=16)
        digest.update(self.source.encode("utf-8", "surrogatepass"))
        return digest.digest()
