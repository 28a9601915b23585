"""Errors of Responses: OpenAI's shape, and the event that ends a begun stream."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rorqual_runtime.errors import ServingError, http_status

from rorqual_recipe.problems import Problem
from rorqual_recipe.protocols import openai_refusals
from rorqual_recipe.protocols.base import RenderedError

_CODES = {429: "rate_limit_exceeded"}


def render_refusal(problems: Sequence[Problem]) -> RenderedError:
    """All problems, up to a bound, in one error; the first one's field is `param`."""
    return _with_frames(openai_refusals.render_refusal(problems))


def render_serving_error(error: ServingError) -> RenderedError:
    """An error from any service."""
    return _with_frames(openai_refusals.render_serving_error(error))


def response_error(error: ServingError) -> dict[str, Any]:
    """The `error` of a response that has failed."""
    status = http_status(error.code)
    code = "server_error" if status >= 500 else "invalid_prompt"
    return {"code": _CODES.get(status, code), "message": error.message}


def _with_frames(error: RenderedError) -> RenderedError:
    """For a stream whose writer is gone: an error event, without knowing the events before it."""
    members = _members(error)
    event = {name: members[name] for name in ("code", "message", "param")}
    data = json.dumps({"type": "error", **event, "sequence_number": 0}, ensure_ascii=False)
    return replace(error, sse_frames=f"event: error\ndata: {data}\n\n".encode())


def _members(error: RenderedError) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(error.body_json)["error"]
    return members
