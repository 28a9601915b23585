"""What is found out about a body while it is read: problems and warnings, by field."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

from rorqual_recipe.problems import Problem, clip, unsupported
from rorqual_recipe.protocols.paths import validate

MAX_WARNINGS = 16
MAX_WARNING_CHARS = 200
MAX_UNKNOWN_FIELDS = 4

Model = TypeVar("Model", bound=BaseModel)


@dataclass(slots=True)
class Notes:
    """Collected in the order of the body; warnings are bounded, problems by what reads them."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def problem(self, param: str, message: str) -> None:
        """The field breaks a rule."""
        self.problems.append(Problem(param, message))

    def unsupported(self, param: str, message: str) -> None:
        """The field is a valid wish that can't be fulfilled here."""
        self.problems.append(unsupported(param, message))

    def warn(self, param: str, message: str) -> None:
        """The field was accepted, but changed."""
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(clip(f"{param}: {message}", MAX_WARNING_CHARS))

    def typed(self, model: type[Model], value: Any, path: str) -> Model | None:
        """The value as the model has it, or None with every problem noted under its path."""
        if not isinstance(value, dict):
            self.problem(path, "must be an object")
            return None
        found, problems = validate(model, value)
        self.problems += [_below(path, problem) for problem in problems]
        if found is not None and found.model_extra:
            self.warn_unknown(path, list(found.model_extra))
        return found

    def warn_unknown(self, path: str, names: Sequence[str]) -> None:
        """Fields nobody here knows, a few of them by name."""
        for name in names[:MAX_UNKNOWN_FIELDS]:
            self.warn(f"{path}.{name}" if path else name, "unknown field, ignored")


def _below(path: str, problem: Problem) -> Problem:
    joint = "." if path and problem.param and not problem.param.startswith("[") else ""
    return Problem(f"{path}{joint}{problem.param}", problem.message, problem.code)
