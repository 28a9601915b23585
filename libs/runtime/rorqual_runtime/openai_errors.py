"""Errors in OpenAI's shape, the same from whichever service writes them."""

from __future__ import annotations

import json

from rorqual_runtime.errors import ErrorCode, ServingError, http_status

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
    ErrorCode.RATE_LIMITED: "rate_limit_exceeded",
    ErrorCode.UNAUTHENTICATED: "invalid_api_key",
    ErrorCode.UNSUPPORTED: "unsupported_parameter",
}


def error_body(status: int, message: str, *, param: str | None, code: str | None) -> bytes:
    """{"error": {"message", "type", "param", "code"}}"""
    default = "invalid_request_error" if status < 500 else "server_error"
    error = {
        "message": message,
        "type": _TYPES.get(status, default),
        "param": param,
        "code": code,
    }
    return json.dumps({"error": error}, ensure_ascii=False).encode()


def render_openai_error(error: ServingError) -> tuple[int, bytes, int]:
    """HTTP status, body and Retry-After (seconds; 0 = none) of a failure of ours."""
    status = http_status(error.code)
    code = _CODES.get(error.code, error.code.name.lower())
    retry_after_s = max(error.retry_after_s, 1) if status in (429, 503) else 0
    return status, error_body(status, error.message, param=error.param, code=code), retry_after_s
