"""Stored responses: read, listed, deleted."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from rorqual_runtime.errors import ServingError

from rorqual_recipe.problems import Problem, RequestRefused, clip, unsupported
from rorqual_recipe.protocols.base import RenderedError
from rorqual_recipe.protocols.direct import DirectServices
from rorqual_recipe.protocols.paths import read_json_object, validate
from rorqual_recipe.protocols.responses.errors import render_refusal, render_serving_error
from rorqual_recipe.protocols.responses.memory import not_found
from rorqual_recipe.response_store import StoredResponse


class _StoredResponses:
    """What the three have in common."""

    def render_refusal(self, problems: Sequence[Problem]) -> RenderedError:
        """See DirectProtocol.render_refusal."""
        return render_refusal(problems)

    def render_error(self, error: ServingError) -> RenderedError:
        """See DirectProtocol.render_error."""
        return render_serving_error(error)


class RetrieveResponse(_StoredResponses):
    """`GET /v1/responses/{id}`."""

    async def answer(
        self, body: bytes, resource: str, tenant: str, services: DirectServices
    ) -> tuple[int, bytes]:
        """See DirectProtocol.answer."""
        if problems := _streaming_again(read_json_object(body or b"{}")):
            raise RequestRefused(problems)
        stored = await _stored(resource, tenant, services)
        return 200, _encoded(stored.response)


def _streaming_again(query: Mapping[str, Any]) -> list[Problem]:
    """Wishes for events: a stored response has ended, and its stream is gone on with by its own
    request."""
    advice = "not supported here: a stream is gone on with by Idempotency-Key and Last-Event-ID"
    wishes = {"stream": (None, "false", "0", ""), "starting_after": (None, "")}
    return [unsupported(name, advice) for name, no in wishes.items() if query.get(name) not in no]


class DeleteResponse(_StoredResponses):
    """`DELETE /v1/responses/{id}`."""

    async def answer(
        self, body: bytes, resource: str, tenant: str, services: DirectServices
    ) -> tuple[int, bytes]:
        """See DirectProtocol.answer."""
        memory = services.memory
        if memory is None or not await memory.store.delete(tenant, resource):
            raise RequestRefused([not_found(resource)])
        return 200, _encoded({"id": resource, "object": "response", "deleted": True})


class ListQuery(BaseModel):
    """Query of a list; values come as text."""

    model_config = ConfigDict(extra="ignore")

    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


class ListInputItems(_StoredResponses):
    """`GET /v1/responses/{id}/input_items`: all that the answer was given, newest first."""

    async def answer(
        self, body: bytes, resource: str, tenant: str, services: DirectServices
    ) -> tuple[int, bytes]:
        """See DirectProtocol.answer."""
        query, problems = validate(ListQuery, read_json_object(body or b"{}"))
        if query is None:
            raise RequestRefused(problems)
        stored = await _stored(resource, tenant, services)
        items = list(stored.items[: stored.num_input])
        if query.order == "desc":
            items.reverse()
        page = _after(items, query.after)
        return 200, _encoded(_page(page[: query.limit], has_more=len(page) > query.limit))


def _after(items: list[Mapping[str, Any]], last_id: str | None) -> list[Mapping[str, Any]]:
    if last_id is None:
        return items
    for index, item in enumerate(items):
        if item["id"] == last_id:
            return items[index + 1 :]
    raise RequestRefused([Problem("after", f"no item has the id '{clip(last_id, 128)}'")])


def _page(items: Sequence[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


async def _stored(resource: str, tenant: str, services: DirectServices) -> StoredResponse:
    memory = services.memory
    stored = await memory.store.get(tenant, resource) if memory is not None else None
    if stored is None:
        raise RequestRefused([not_found(resource)])
    return stored


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
