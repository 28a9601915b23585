"""JSON bodies and the exact paths of what is wrong in them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError

from rorqual_recipe.problems import Problem, RequestRefused

Model = TypeVar("Model", bound=BaseModel)

_PLAIN_WORDS = dict.fromkeys(("model_type", "dict_type"), "must be an object")


def read_json_object(body: bytes) -> dict[str, Any]:
    """The body's object. Raises: RequestRefused when it is no JSON object."""
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as err:
        raise RequestRefused([Problem("", f"the body is not valid JSON: {err}")]) from err
    if not isinstance(value, dict):
        raise RequestRefused([Problem("", "the body must be a JSON object")])
    return value


def validate(model: type[Model], value: dict[str, Any]) -> tuple[Model | None, list[Problem]]:
    """The typed body, or None with every problem found."""
    try:
        return model.model_validate(value), []
    except ValidationError as err:
        return None, [_problem(entry) for entry in err.errors()]


def _problem(entry: Mapping[str, Any]) -> Problem:
    message = _PLAIN_WORDS.get(entry["type"]) or entry["msg"]
    return Problem(field_path(entry["loc"]), message[:1].lower() + message[1:])


def field_path(loc: Sequence[int | str]) -> str:
    """`messages[2].content[0].text`; steps in <brackets> name a union's member and are left out."""
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not (step.startswith("<") and step.endswith(">")):
            path += f".{step}" if path else step
    return path
