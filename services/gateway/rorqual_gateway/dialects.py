"""How each family of APIs wants to be spoken to where the edge itself has something to say."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from rorqual_runtime.accounts.quotas import QuotaState
from rorqual_runtime.anthropic_errors import (
    anthropic_error_body,
    anthropic_error_frame,
    render_anthropic_error,
)
from rorqual_runtime.errors import ServingError
from rorqual_runtime.openai_errors import error_body, render_openai_error

from rorqual_gateway.errors import HttpError

Headers = list[tuple[bytes, bytes]]


class Dialect(Protocol):
    """A family of APIs with one shape of errors. keepalive: what an idle stream carries."""

    keepalive: bytes

    def render_error(self, error: ServingError, num_frames: int = 0) -> HttpError:
        """A failure of ours. num_frames: SSE frames that the client has got already."""
        ...

    def plain_error(self, status: int, message: str) -> HttpError:
        """An error of HTTP itself, such as an unknown path."""
        ...

    def id_headers(self, request_id: str) -> Headers:
        """The request's id, where clients look for it."""
        ...

    def quota_headers(self, quota: QuotaState) -> Headers:
        """What is left of a key's quotas, where clients look for it."""
        ...

    def with_request_id(self, error: HttpError, request_id: str) -> HttpError:
        """The error, naming the request where this family does so in the body."""
        ...


class OpenAiDialect:
    """Chat Completions, Completions, and everything that has no family of its own."""

    keepalive = b": keep-alive\n\n"

    def render_error(self, error: ServingError, num_frames: int = 0) -> HttpError:
        """See Dialect.render_error."""
        status, body, retry_after_s = render_openai_error(error)
        frames = self._frames(body, num_frames)
        return HttpError(status, body, error.code.name, retry_after_s, frames)

    def plain_error(self, status: int, message: str) -> HttpError:
        """See Dialect.plain_error."""
        body = error_body(status, message, param=None, code=None)
        return HttpError(status, body, f"HTTP_{status}")

    def id_headers(self, request_id: str) -> Headers:
        """See Dialect.id_headers."""
        return [(b"x-request-id", request_id.encode())]

    def quota_headers(self, quota: QuotaState) -> Headers:
        """See Dialect.quota_headers."""
        headers: Headers = []
        for kind, left in (("requests", quota.requests), ("tokens", quota.tokens)):
            if left is not None:
                headers += [
                    (f"x-ratelimit-limit-{kind}".encode(), b"%d" % left.limit),
                    (f"x-ratelimit-remaining-{kind}".encode(), b"%d" % left.remaining),
                    (f"x-ratelimit-reset-{kind}".encode(), f"{left.reset_s:.3f}s".encode()),
                ]
        return headers

    def with_request_id(self, error: HttpError, request_id: str) -> HttpError:
        """See Dialect.with_request_id: a header is enough here."""
        return error

    def _frames(self, body: bytes, num_frames: int) -> bytes:
        return b"data: " + body + b"\n\ndata: [DONE]\n\n"


class ResponsesDialect(OpenAiDialect):
    """The Responses API: OpenAI's errors, but a stream of numbered events."""

    def _frames(self, body: bytes, num_frames: int) -> bytes:
        error = json.loads(body)["error"]
        event = {
            "type": "error",
            "code": error["code"],
            "message": error["message"],
            "param": error["param"],
            "sequence_number": num_frames,
        }
        return b"event: error\ndata: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


class AnthropicDialect:
    """The Messages API."""

    keepalive = b'event: ping\ndata: {"type": "ping"}\n\n'

    def render_error(self, error: ServingError, num_frames: int = 0) -> HttpError:
        """See Dialect.render_error."""
        status, body, retry_after_s = render_anthropic_error(error)
        frames = anthropic_error_frame(body)
        return HttpError(status, body, error.code.name, retry_after_s, frames)

    def plain_error(self, status: int, message: str) -> HttpError:
        """See Dialect.plain_error."""
        return HttpError(status, anthropic_error_body(status, message), f"HTTP_{status}")

    def id_headers(self, request_id: str) -> Headers:
        """See Dialect.id_headers: these clients read `request-id`."""
        name = request_id.encode()
        return [(b"x-request-id", name), (b"request-id", name)]

    def quota_headers(self, quota: QuotaState) -> Headers:
        """See Dialect.quota_headers: these clients read points in time."""
        now = datetime.now(UTC)
        headers: Headers = []
        for kind, left in (("requests", quota.requests), ("tokens", quota.tokens)):
            if left is not None:
                base = f"anthropic-ratelimit-{kind}"
                whole_again = (now + timedelta(seconds=left.reset_s)).isoformat("T", "seconds")
                headers += [
                    (f"{base}-limit".encode(), b"%d" % left.limit),
                    (f"{base}-remaining".encode(), b"%d" % left.remaining),
                    (f"{base}-reset".encode(), whole_again.replace("+00:00", "Z").encode()),
                ]
        return headers

    def with_request_id(self, error: HttpError, request_id: str) -> HttpError:
        """See Dialect.with_request_id: beside the error, also at the end of a begun stream."""
        body = error.body[:-1] + b',"request_id":' + json.dumps(request_id).encode() + b"}"
        return replace(error, body=body, sse_frames=error.sse_frames.replace(error.body, body))


OPENAI: Dialect = OpenAiDialect()
RESPONSES: Dialect = ResponsesDialect()
ANTHROPIC: Dialect = AnthropicDialect()
