"""Errors in OpenAI's shape: refused requests with every problem in one."""

from collections.abc import Sequence
from dataclasses import replace

from rorqual_runtime.errors import ServingError, http_status
from rorqual_runtime.openai_errors import error_body, render_openai_error

from rorqual_recipe.problems import MAX_TEXT_CHARS, Problem, clip
from rorqual_recipe.protocols.base import RenderedError

MAX_PROBLEMS = 20


def render_refusal(problems: Sequence[Problem]) -> RenderedError:
    """All problems, up to a bound, in one error; the first one's field is `param`.

    The status is the problem's own when there is just one, else 400.
    """
    first = problems[0]
    status = http_status(first.code) if len(problems) == 1 else 400
    sentences = [problem.text() for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        sentences.append(f"and {len(problems) - MAX_PROBLEMS} more problems")
    param = clip(first.param, MAX_TEXT_CHARS) or None
    body = error_body(status, "; ".join(sentences), param=param, code=first.protocol_code)
    return with_frames(RenderedError(status, body))


def render_serving_error(error: ServingError) -> RenderedError:
    """An error from any service. What is our bug says no more than that."""
    return with_frames(RenderedError(*render_openai_error(error)))


def with_frames(error: RenderedError) -> RenderedError:
    """The error with what ends a begun stream."""
    frames = b"data: " + error.body_json + b"\n\ndata: [DONE]\n\n"
    return replace(error, sse_frames=frames)
