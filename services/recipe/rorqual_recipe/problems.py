"""What can be wrong with a client's request, collected so that all of it is reported at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from rorqual_runtime.errors import ErrorCode

MAX_TEXT_CHARS = 500


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: the field's exact path ("" = the whole body) and what is wrong with it.

    is_sentence: the message is complete without the field's name before it.
    """

    param: str
    message: str
    code: ErrorCode = ErrorCode.INVALID_REQUEST
    protocol_code: str | None = None
    is_sentence: bool = False

    def text(self) -> str:
        """The sentence, led by its field; cut when it quotes too much of what the client sent."""
        if self.is_sentence or not self.param:
            return clip(self.message, MAX_TEXT_CHARS)
        return clip(f"{self.param}: {self.message}", MAX_TEXT_CHARS)


class RequestRefused(Exception):
    """A request that can't be served as it stands; carries every problem found, at least one."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.text() for problem in problems))


def clip(text: str, max_chars: int) -> str:
    """The text, or its beginning with an ellipsis."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def unsupported(param: str, message: str) -> Problem:
    """A valid wish that this build or model can't fulfil."""
    return Problem(param, message, ErrorCode.UNSUPPORTED, "unsupported_parameter")


def model_not_found(model: str, served: Sequence[str]) -> Problem:
    """The request names a model that isn't served here."""
    message = f"The model '{model}' does not exist; served: {', '.join(served)}"
    return Problem("model", message, ErrorCode.NOT_FOUND, "model_not_found", is_sentence=True)


def context_too_long(param: str, message: str) -> Problem:
    """Prompt and answer together don't fit into the model's context."""
    return Problem(
        param, message, ErrorCode.CONTEXT_TOO_LONG, "context_length_exceeded", is_sentence=True
    )
