"""The free text of a custom tool, where a format of calls wraps it into JSON."""

import json
import re

from rorqual_recipe.output.calls.dsml_arguments import CUSTOM_INPUT

_BEGUN = re.compile(
    rf'\s*\{{\s*"{CUSTOM_INPUT}"\s*:\s*"((?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{{4}})*)'
)
_HALF_A_CHARACTER = re.compile(r"(?i)\\ud[89ab][0-9a-f]{2}\Z")


def unwrapped(arguments: str, *, is_cut: bool = False) -> str:
    """The text in `{"input": text}`, or as much of it as a cut left; anything else as it is."""
    if is_cut:
        begun = _BEGUN.match(arguments)
        text = _HALF_A_CHARACTER.sub("", begun.group(1)) if begun else ""
        return json.loads(f'"{text}"', strict=False) if begun else arguments
    try:
        value = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(value, dict) and list(value) == [CUSTOM_INPUT]:
        text = value[CUSTOM_INPUT]
        return text if isinstance(text, str) else arguments
    return arguments
