"""The shape that an answer is held to, however the client spells the wish."""

import json
import re
from typing import Any

from rorqual_recipe.conversation import ConstraintKind, OutputConstraint
from rorqual_recipe.protocols.chat.schema import ResponseFormat, SamplingFields, StructuredOutputs
from rorqual_recipe.protocols.json_schema import schema_problems
from rorqual_recipe.protocols.notes import Notes

MAX_SOURCE_CHARS = 1_000_000
MAX_CHOICES = 1024


class ShapeReader:
    """Reads `response_format`, `structured_outputs` and `guided_*`; problems are noted."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def read(self, request: SamplingFields) -> OutputConstraint | None:
        """The one shape, or None for free text."""
        found = self._response_format(request.response_format)
        outputs = request.structured_outputs
        found += self._structured(outputs, "structured_outputs.") if outputs else []
        guided = StructuredOutputs(
            json=request.guided_json,
            regex=request.guided_regex,
            choice=request.guided_choice,
            grammar=request.guided_grammar,
        )
        found += self._structured(guided, "guided_")
        for extra in found[1:]:
            self._notes.problem(extra.param, f"must not be given beside {found[0].param}")
        return found[0] if found else None

    def _response_format(self, shape: ResponseFormat | None) -> list[OutputConstraint]:
        if shape is None or shape.type == "text":
            return []
        if shape.type == "json_object":
            return [OutputConstraint(ConstraintKind.JSON_OBJECT, param="response_format")]
        if shape.type == "regex":
            if shape.regex is None:
                self._notes.problem("response_format.regex", "field required with type regex")
                return []
            return self._text(ConstraintKind.REGEX, shape.regex, "response_format.regex")
        if shape.json_schema is None:
            self._notes.problem(
                "response_format.json_schema", "field required with type json_schema"
            )
            return []
        return self._schema(shape.json_schema.json_schema, "response_format.json_schema.schema")

    def _structured(self, shape: StructuredOutputs, prefix: str) -> list[OutputConstraint]:
        found: list[OutputConstraint] = []
        if shape.json_schema is not None:
            found += self._schema_or_text(shape.json_schema, f"{prefix}json")
        if shape.regex is not None:
            found += self._text(ConstraintKind.REGEX, shape.regex, f"{prefix}regex")
        if shape.grammar is not None:
            found += self._text(ConstraintKind.EBNF, shape.grammar, f"{prefix}grammar")
        if shape.choice is not None:
            found += self._choices(shape.choice, f"{prefix}choice")
        if shape.json_object:
            found.append(OutputConstraint(ConstraintKind.JSON_OBJECT, param=f"{prefix}json_object"))
        return found

    def _schema_or_text(self, schema: Any, param: str) -> list[OutputConstraint]:
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as err:
                self._notes.problem(param, f"is not valid JSON: {err}")
                return []
        return self._schema(schema, param)

    def _schema(self, schema: Any, param: str) -> list[OutputConstraint]:
        problems = list(schema_problems(schema, param))
        self._notes.problems += problems
        if problems:
            return []
        source = json.dumps(schema, ensure_ascii=False)
        return self._text(ConstraintKind.JSON_SCHEMA, source, param)

    def _choices(self, choices: list[str], param: str) -> list[OutputConstraint]:
        if not 1 <= len(choices) <= MAX_CHOICES or not all(choices):
            self._notes.problem(param, f"must be 1 to {MAX_CHOICES} texts, none of them empty")
            return []
        pattern = "|".join(_exactly(choice) for choice in choices)
        return self._text(ConstraintKind.REGEX, f"({pattern})", param)

    def _text(self, kind: ConstraintKind, source: str, param: str) -> list[OutputConstraint]:
        if len(source) > MAX_SOURCE_CHARS:
            self._notes.problem(param, f"at most {MAX_SOURCE_CHARS} characters")
            return []
        return [OutputConstraint(kind, source, param)]


def _exactly(text: str) -> str:
    """A pattern that matches this text only, in every dialect of regular expressions."""
    return re.sub(r"[.^$*+?()\[\]{}|\\]", r"\\\g<0>", text)
