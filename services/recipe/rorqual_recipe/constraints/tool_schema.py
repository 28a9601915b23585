"""What a tool's arguments are held to, before any format of calls is thought of."""

from dataclasses import dataclass, replace
from typing import Any

from rorqual_recipe.constraints.tags import ANY_OBJECT
from rorqual_recipe.conversation import Tool, ToolKind

CUSTOM_INPUT = "input"
_SELF_EXPLAINING = ("type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const")


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool with the name it is printed under.

    is_held: its arguments must fit its parameters, as far as those can be enforced; else any JSON
    object will do.
    """

    name: str
    tool: Tool
    param: str
    is_held: bool

    @property
    def is_custom(self) -> bool:
        """Takes free text."""
        return self.tool.kind is ToolKind.CUSTOM

    @property
    def has_promise(self) -> bool:
        """Its arguments fit, or the request is refused."""
        return self.tool.strict or self.tool.grammar is not None

    @property
    def fallback(self) -> Any:
        """What to hold arguments to where the parameters can't be enforced; None = refuse."""
        return None if self.has_promise else dict(ANY_OBJECT)

    @property
    def is_optional(self) -> bool:
        """It is held to its parameters though nobody was promised that."""
        return self.is_held and not self.has_promise

    def relaxed(self) -> "CallableTool":
        """The same, held to what was promised only."""
        return replace(self, is_held=self.has_promise)

    def schema(self) -> Any:
        """JSON Schema of the arguments, always that of an object."""
        if self.is_custom:
            return _input_schema(self.tool)
        if not self.is_held:
            return dict(ANY_OBJECT)
        parameters = dict(self.tool.parameters)
        if not parameters:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        if not any(key in parameters for key in _SELF_EXPLAINING):
            return {"type": "object", **parameters}
        return parameters


def _input_schema(tool: Tool) -> dict[str, Any]:
    """Free text inside JSON: a pattern holds there too, a grammar does not."""
    syntax, definition = tool.grammar or ("", "")
    text = {"type": "string", "pattern": definition} if syntax == "regex" else {"type": "string"}
    return {
        "type": "object",
        "properties": {CUSTOM_INPUT: text},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
