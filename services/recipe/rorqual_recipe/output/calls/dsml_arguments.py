"""The arguments of a DSML call: parameters in, one JSON object out, piece by piece."""

from rorqual_recipe.json_text import json_string
from rorqual_recipe.output.calls.base import CallSink
from rorqual_recipe.output.calls.json_values import as_json, escape, is_json

CUSTOM_INPUT = "input"


class DsmlArguments:
    """Writes a begun call's arguments.

    Strings stream; other values come whole, once they are known to be JSON. The first value of a
    name counts, since it is on its way already. A custom tool's only parameter `input` is written
    as it is; any other makes it an ordinary object.
    """

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._names: set[str] = set()
        self._is_free_text = False
        self._is_muted = False
        self.problems: list[str] = []

    def begin_string(self, name: str) -> None:
        """A string value follows."""
        if self._sink.is_custom and name == CUSTOM_INPUT and not self._names:
            self._names.add(name)
            self._is_free_text = True
        elif self._begin(name):
            self._sink.arguments('"')

    def add_string(self, text: str) -> None:
        """More of the string."""
        if not self._is_muted:
            self._sink.arguments(text if self._is_free_text else escape(text))

    def end_string(self) -> None:
        """The string is complete."""
        if not self._is_muted and not self._is_free_text:
            self._sink.arguments('"')
        self._is_muted = False

    def add_value(self, name: str, raw: str) -> None:
        """A value that should be JSON."""
        if not self._begin(name):
            self._is_muted = False
            return
        value, problem = as_json(raw)
        if problem:
            self.problems.append(f"parameter `{name}`: {problem}")
        self._sink.arguments(value)

    def add_unmarked(self, name: str, raw: str) -> None:
        """A value of which the model didn't say whether it is a string."""
        is_text = self._sink.takes_text(name)
        if is_text or (is_text is None and not is_json(raw)) or self._is_lone_input(name):
            self.begin_string(name)
            self.add_string(raw)
            self.end_string()
        else:
            self.add_value(name, raw)

    def add_broken(self, name: str, raw: str) -> None:
        """The beginning of a value whose end never came."""
        if self._begin(name):
            self._sink.arguments(raw)

    def close(self) -> None:
        """No parameter follows."""
        if not self._names:
            self._sink.arguments("" if self._sink.is_custom else "{}")
        elif not self._is_free_text:
            self._sink.arguments("}")

    def _is_lone_input(self, name: str) -> bool:
        return self._sink.is_custom and name == CUSTOM_INPUT and not self._names

    def _begin(self, name: str) -> bool:
        """True when the value is wanted; its name is written then."""
        if self._is_free_text:
            self.problems.append(f"parameter `{name}` follows the tool's text and is left out")
        elif name in self._names:
            self.problems.append(f"parameter `{name}` is there twice and its first value is kept")
        else:
            self._sink.arguments(f"{', ' if self._names else '{'}{json_string(name)}: ")
            self._names.add(name)
            return True
        self._is_muted = True
        return False
