"""Formats of tool calls, by the name an encoding gives them."""

from rorqual_recipe.encodings.base import NO_TOOL_FORMAT
from rorqual_recipe.output.calls.base import CallFormat
from rorqual_recipe.output.calls.dsml import DsmlCalls
from rorqual_recipe.output.calls.json_formats import HermesCalls, LlamaCalls
from rorqual_recipe.output.calls.mistral import MistralCalls

CALL_FORMATS: dict[str, type[CallFormat]] = {
    "dsml-v4": DsmlCalls,
    "dsml-v4.1": DsmlCalls,
    "hermes": HermesCalls,
    "llama3-json": LlamaCalls,
    "mistral": MistralCalls,
}


class UnknownToolFormat(Exception):
    """An encoding names a format of tool calls that isn't there."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"tool format {name!r} is none of {', '.join(sorted(CALL_FORMATS))}")


def call_format(name: str) -> type[CallFormat] | None:
    """The format of that name; None when answers hold no calls. Raises: UnknownToolFormat."""
    if name in ("", NO_TOOL_FORMAT):
        return None
    try:
        return CALL_FORMATS[name]
    except KeyError:
        raise UnknownToolFormat(name) from None
