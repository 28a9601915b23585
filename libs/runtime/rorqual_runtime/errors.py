"""The closed set of failures that cross a boundary.

ServingError
  InvalidRequest ContextTooLong Unsupported      400, the caller's fault
  Unauthenticated PermissionDenied NotFound      401 403 404
  RequestTooLarge RateLimited                    413 429
  QueueTimeout                                   408
  NoCapacity Draining Unavailable                503, worth another try
  DeadlineExceeded                               504
  Cancelled                                      499, never sent
  StaleTicket Corrupt                            a reference is void; the reader recomputes
  Internal                                       500, our bug
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar, cast

from rorqual_proto.v1 import error_pb2


class ErrorCode(IntEnum):
    """The codes of `rorqual.v1.ErrorCode`, same numbers."""

    UNSPECIFIED = 0
    INVALID_REQUEST = 1
    UNAUTHENTICATED = 2
    PERMISSION_DENIED = 3
    NOT_FOUND = 4
    REQUEST_TOO_LARGE = 5
    RATE_LIMITED = 6
    CONTEXT_TOO_LONG = 7
    UNSUPPORTED = 8
    QUEUE_TIMEOUT = 9
    NO_CAPACITY = 10
    DRAINING = 11
    UNAVAILABLE = 12
    DEADLINE_EXCEEDED = 13
    CANCELLED = 14
    STALE_TICKET = 15
    CORRUPT = 16
    INTERNAL = 17


_HTTP_STATUS = {
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.REQUEST_TOO_LARGE: 413,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.CONTEXT_TOO_LONG: 400,
    ErrorCode.UNSUPPORTED: 400,
    ErrorCode.QUEUE_TIMEOUT: 408,
    ErrorCode.NO_CAPACITY: 503,
    ErrorCode.DRAINING: 503,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.DEADLINE_EXCEEDED: 504,
    ErrorCode.CANCELLED: 499,
}


class ServingError(Exception):
    """A failure with a code, one sentence for a person, and its facts as data.

    retryable: the same request may succeed elsewhere or a little later.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int = 0,
        details: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.details = dict(details or {})


class InvalidRequest(ServingError):
    """The request breaks a rule; `param` is the path of the offending field."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, message: str, param: str | None = None, **data: Any) -> None:
        super().__init__(message, param=param, **data)


class Unauthenticated(ServingError):
    """No key, or one that nobody knows."""

    code = ErrorCode.UNAUTHENTICATED


class PermissionDenied(ServingError):
    """A known key that may not do this."""

    code = ErrorCode.PERMISSION_DENIED


class NotFound(ServingError):
    """The named thing does not exist here."""

    code = ErrorCode.NOT_FOUND


class RequestTooLarge(ServingError):
    """A body or message over its byte limit; found before it was sent on."""

    code = ErrorCode.REQUEST_TOO_LARGE

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            f"{size} bytes exceed the limit of {limit} bytes",
            details={"size_bytes": str(size), "limit_bytes": str(limit)},
        )


class RateLimited(ServingError):
    """The caller's own quota is used up for now."""

    code, retryable = ErrorCode.RATE_LIMITED, True

    def __init__(self, retry_after_s: int, message: str = "rate limit reached") -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class ContextTooLong(ServingError):
    """Prompt and answer do not fit into the model's context."""

    code = ErrorCode.CONTEXT_TOO_LONG

    def __init__(self, prompt_tokens: int, limit_tokens: int) -> None:
        self.prompt_tokens, self.limit_tokens = prompt_tokens, limit_tokens
        super().__init__(
            f"a prompt of {prompt_tokens} tokens exceeds the limit of {limit_tokens} tokens",
            details={"prompt_tokens": str(prompt_tokens), "limit_tokens": str(limit_tokens)},
        )


class Unsupported(ServingError):
    """Valid, but this model or this build can't do it."""

    code = ErrorCode.UNSUPPORTED

    def __init__(self, message: str, param: str | None = None, **data: Any) -> None:
        super().__init__(message, param=param, **data)


class QueueTimeout(ServingError):
    """No worker took the request in time."""

    code, retryable = ErrorCode.QUEUE_TIMEOUT, True

    def __init__(self, message: str = "no worker was free in time", **data: Any) -> None:
        super().__init__(message, **data)


class NoCapacity(ServingError):
    """A bound is reached: slots, pages, queue length."""

    code, retryable = ErrorCode.NO_CAPACITY, True

    def __init__(self, message: str = "no capacity", **data: Any) -> None:
        super().__init__(message, **{"retry_after_s": 1, **data})


class Draining(ServingError):
    """This instance is shutting down and takes nothing new."""

    code, retryable = ErrorCode.DRAINING, True

    def __init__(self, message: str = "this instance is draining", **data: Any) -> None:
        super().__init__(message, **{"retry_after_s": 1, **data})


class Unavailable(ServingError):
    """A service or the bus can't be reached."""

    code, retryable = ErrorCode.UNAVAILABLE, True

    def __init__(self, message: str = "service unavailable", **data: Any) -> None:
        super().__init__(message, **{"retry_after_s": 1, **data})


class DeadlineExceeded(ServingError):
    """The answer did not come before the deadline."""

    code = ErrorCode.DEADLINE_EXCEEDED

    def __init__(self, message: str = "deadline exceeded", **data: Any) -> None:
        super().__init__(message, **data)


class Cancelled(ServingError):
    """The client left."""

    code = ErrorCode.CANCELLED

    def __init__(self, message: str = "the request was cancelled", **data: Any) -> None:
        super().__init__(message, **data)


class StaleTicket(ServingError):
    """A tensor reference outlived its data; nothing was read."""

    code = ErrorCode.STALE_TICKET

    def __init__(self, message: str = "the tensor ticket is stale", **data: Any) -> None:
        super().__init__(message, **data)


class Corrupt(ServingError):
    """A checksum, key or encoding does not match; the data must not be used."""

    code = ErrorCode.CORRUPT

    def __init__(self, message: str = "the data is corrupt", **data: Any) -> None:
        super().__init__(message, **data)


class Internal(ServingError):
    """Our bug."""

    code = ErrorCode.INTERNAL

    def __init__(self, message: str = "internal error", **data: Any) -> None:
        super().__init__(message, **data)


_CLASSES: dict[int, type[ServingError]] = {cls.code: cls for cls in ServingError.__subclasses__()}


def http_status(code: int) -> int:
    """HTTP status of an error code; 500 for what is no caller's business."""
    return _HTTP_STATUS.get(code, 500)  # type: ignore[call-overload,no-any-return]


def error_to_wire(error: BaseException) -> error_pb2.ErrorInfo:
    """The error as it travels. Anything but a ServingError becomes INTERNAL without its text,
    which might quote request content."""
    if not isinstance(error, ServingError):
        return error_pb2.ErrorInfo(
            code=error_pb2.ERROR_CODE_INTERNAL, message=f"internal error ({type(error).__name__})"
        )
    return error_pb2.ErrorInfo(
        code=cast("error_pb2.ErrorCode", int(error.code)),
        message=error.message,
        param=error.param or "",
        retry_after_s=error.retry_after_s,
        details=error.details,
    )


def error_from_wire(wire: error_pb2.ErrorInfo) -> ServingError:
    """The same class that was raised at the other end; an unknown code becomes Internal."""
    details = dict(wire.details)
    cls = _CLASSES.get(wire.code, Internal)
    error = cls.__new__(cls)
    ServingError.__init__(
        error,
        wire.message,
        param=wire.param or None,
        retry_after_s=wire.retry_after_s,
        details=details,
    )
    if isinstance(error, RequestTooLarge):
        error.size, error.limit = _number(details, "size_bytes"), _number(details, "limit_bytes")
    elif isinstance(error, ContextTooLong):
        error.prompt_tokens = _number(details, "prompt_tokens")
        error.limit_tokens = _number(details, "limit_tokens")
    return error


def _number(details: dict[str, str], key: str) -> int:
    text = details.get(key, "")
    return int(text) if text.isdigit() else 0
