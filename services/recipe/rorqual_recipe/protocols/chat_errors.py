"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

import json
from collections.abc import Sequence

from rorqual_runtime.errors import ErrorCode, ServingError, http_status

from rorqual_recipe.problems import MAX_TEXT_CHARS, Problem, clip
from rorqual_recipe.protocols.base import RenderedError

MAX_PROBLEMS = 20

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_CODES = {
    ErrorCode.CONTEXT_TOO_LONG: "context_length_exceeded",
    ErrorCode.NOT_FOUND: "model_not_found",
    ErrorCode.UNSUPPORTED: "unsupported_parameter",
    ErrorCode.RATE_LIMITED: "rate_limit_exceeded",
}


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
    return _error(status, "; ".join(sentences), param, first.protocol_code)


def render_serving_error(error: ServingError) -> RenderedError:
    """An error from any service. What is our bug says no more than that."""
    status = http_status(error.code)
    code = _CODES.get(error.code, error.code.name.lower())
    retry_after_s = max(error.retry_after_s, 1) if status in (429, 503) else 0
    rendered = _error(status, error.message, error.param, code)
    return RenderedError(rendered.http_status, rendered.body_json, retry_after_s)


def _error(status: int, message: str, param: str | None, code: str | None) -> RenderedError:
    default = "invalid_request_error" if status < 500 else "server_error"
    body = {
        "error": {
            "message": message,
            "type": _TYPES.get(status, default),
            "param": param,
            "code": code,
        }
    }
    return RenderedError(status, json.dumps(body, ensure_ascii=False).encode())
