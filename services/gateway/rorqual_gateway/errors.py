"""Errors as they leave over HTTP."""

from dataclasses import dataclass

from rorqual_runtime.errors import ServingError
from rorqual_runtime.openai_errors import error_body, render_openai_error


@dataclass(frozen=True, slots=True)
class HttpError:
    """A finished error answer. code: the cause's name, for metrics and traces.
    sse_frames: what ends a begun stream with it.
    """

    status: int
    body: bytes
    code: str
    retry_after_s: int = 0
    sse_frames: bytes = b""


class RequestFailed(Exception):
    """A request that ends with an error that is rendered already."""

    def __init__(self, error: HttpError) -> None:
        self.error = error
        super().__init__(f"{error.status} {error.code}")


def render_error(error: ServingError) -> HttpError:
    """A failure of ours in OpenAI's shape."""
    status, body, retry_after_s = render_openai_error(error)
    frames = b"data: " + body + b"\n\ndata: [DONE]\n\n"
    return HttpError(status, body, error.code.name, retry_after_s, frames)


def plain_error(status: int, message: str) -> HttpError:
    """An error of HTTP itself, such as an unknown path, in OpenAI's shape."""
    return HttpError(status, error_body(status, message, param=None, code=None), f"HTTP_{status}")
