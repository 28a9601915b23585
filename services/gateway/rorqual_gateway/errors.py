"""Errors as they leave over HTTP."""

import json
from dataclasses import dataclass

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
    ErrorCode.UNAUTHENTICATED: "invalid_api_key",
    ErrorCode.RATE_LIMITED: "rate_limit_exceeded",
}


@dataclass(frozen=True, slots=True)
class HttpError:
    """A finished error answer. code: the cause's name, for metrics and traces."""

    status: int
    body: bytes
    code: str
    retry_after_s: int = 0


class RequestFailed(Exception):
    """A request that ends with an error that is rendered already."""

    def __init__(self, error: HttpError) -> None:
        self.error = error
        super().__init__(f"{error.status} {error.code}")


def render_error(error: ServingError) -> HttpError:
    """A failure of ours in OpenAI's shape."""
    status = http_status(error.code)
    code = _CODES.get(error.code, error.code.name.lower())
    retry_after_s = max(error.retry_after_s, 1) if status in (429, 503) else 0
    body = _body(status, error.message, error.param, code)
    return HttpError(status, body, error.code.name, retry_after_s)


def plain_error(status: int, message: str) -> HttpError:
    """An error of HTTP itself, such as an unknown path, in OpenAI's shape."""
    return HttpError(status, _body(status, message, None, None), f"HTTP_{status}")


def _body(status: int, message: str, param: str | None, code: str | None) -> bytes:
    """{"error": {"message", "type", "param", "code"}}"""
    default = "invalid_request_error" if status < 500 else "server_error"
    error = {
        "message": message,
        "type": _TYPES.get(status, default),
        "param": param,
        "code": code,
    }
    return json.dumps({"error": error}, ensure_ascii=False).encode()
