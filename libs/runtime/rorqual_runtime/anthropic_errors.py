"""Errors in Anthropic's shape, the same from whichever service writes them."""

from __future__ import annotations

import json

from rorqual_runtime.errors import ServingError, http_status

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error_body(status: int, message: str) -> bytes:
    """{"type": "error", "error": {"type", "message"}}"""
    default = "invalid_request_error" if status < 500 else "api_error"
    error = {"type": _TYPES.get(status, default), "message": message}
    return json.dumps({"type": "error", "error": error}, ensure_ascii=False).encode()


def render_anthropic_error(error: ServingError) -> tuple[int, bytes, int]:
    """HTTP status, body and Retry-After (seconds; 0 = none) of a failure of ours."""
    status = http_status(error.code)
    retry_after_s = max(error.retry_after_s, 1) if status in (429, 503) else 0
    return status, anthropic_error_body(status, _with_param(error)), retry_after_s


def anthropic_error_frame(body: bytes) -> bytes:
    """What ends a begun stream with an error."""
    return b"event: error\ndata: " + body + b"\n\n"


def _with_param(error: ServingError) -> str:
    """The sentence names the field: this shape has no place of its own for it."""
    if not error.param or error.param in error.message:
        return error.message
    return f"{error.param}: {error.message}"
