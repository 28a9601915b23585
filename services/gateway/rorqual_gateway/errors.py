"""Errors as they leave over HTTP."""

from dataclasses import dataclass


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
