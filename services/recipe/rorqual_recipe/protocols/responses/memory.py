"""Looking up what a request builds on, and keeping what later requests may build on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pydantic_core
from rorqual_runtime.errors import ErrorCode, Unavailable
from rorqual_runtime.logs import get_logger

from rorqual_recipe.problems import Problem, clip
from rorqual_recipe.protocols.direct import RequestContext
from rorqual_recipe.protocols.responses.echo import ResponsesEcho
from rorqual_recipe.protocols.responses.input import MAX_ITEMS, is_reference
from rorqual_recipe.protocols.responses.prior import NO_STORE, Prior, response_of_item
from rorqual_recipe.response_memory import ResponseMemory
from rorqual_recipe.response_store import StoredResponse, StoredTooLarge
from rorqual_recipe.sealing import SealBinding, Sealer

log = get_logger(__name__)

MAX_REFERRED_RESPONSES = 32
_NEEDS_LOOK = (b"previous_response_id", b'"id"')
_NEEDS_SEALER = b"encrypted_content"


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What of a body has to be looked up."""

    previous_id: str | None = None
    reference_ids: Sequence[str] = ()


async def look_up(body: bytes, context: RequestContext) -> Prior:
    """What the request builds on. Raises: Unavailable when that can't be found out now."""
    memory = context.services.memory
    wishes = _Wishes()
    if any(mark in body for mark in _NEEDS_LOOK):
        wishes = await context.services.compute(lambda: _wishes(body), len(body))
    if memory is None:
        return Prior(problems=_no_store(wishes.previous_id))
    previous, problems = await _previous(memory, wishes.previous_id, context.tenant)
    known = await _known_items(memory, wishes.reference_ids, context.tenant)
    earlier_bytes = previous.num_bytes if previous else 0
    return Prior(
        request_id=context.request_id,
        binding=SealBinding(context.tenant, context.services.model.model_id),
        sealer=await _sealer(memory) if _NEEDS_SEALER in body else None,
        now_unix_s=memory.clock.now_unix_s(),
        history=previous.items if previous else (),
        known_items=known.items,
        problems=[*problems, *known.problems],
        why_not_stored=_why_not_stored(memory, len(body) + earlier_bytes),
        num_bytes=earlier_bytes + known.num_bytes,
    )


async def _sealer(memory: ResponseMemory) -> Sealer | Unavailable:
    """The sealer, or why there is none: only requests that turn out to need it fail."""
    try:
        return await memory.sealer()
    except Unavailable as err:
        return err


def _wishes(body: bytes) -> _Wishes:
    """Nothing is reported from here: what is wrong with the body is `parse`'s to tell."""
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError:
        return _Wishes()
    if not isinstance(value, dict):
        return _Wishes()
    previous, items = value.get("previous_response_id"), value.get("input")
    listed = items[:MAX_ITEMS] if isinstance(items, list) else []
    return _Wishes(
        previous if isinstance(previous, str) and previous else None,
        [item["id"] for item in listed if is_reference(item)],
    )


def _no_store(previous_id: str | None) -> list[Problem]:
    if previous_id is None:
        return []
    return [Problem("previous_response_id", NO_STORE)]


def _why_not_stored(memory: ResponseMemory, num_bytes: int) -> str:
    if memory.store.is_away:
        return "the response store is away, this response is not kept"
    if num_bytes > memory.store.max_bytes:
        return f"only responses up to {memory.store.max_bytes} bytes are kept"
    return ""


async def _previous(
    memory: ResponseMemory, previous_id: str | None, tenant: str
) -> tuple[StoredResponse | None, list[Problem]]:
    if previous_id is None:
        return None, []
    stored = await memory.store.get(tenant, previous_id)
    if stored is not None:
        return stored, []
    message = f"Previous response with id '{clip(previous_id, 128)}' not found."
    return None, [
        Problem(
            "previous_response_id",
            message,
            protocol_code="previous_response_not_found",
            is_sentence=True,
        )
    ]


@dataclass(slots=True)
class _KnownItems:
    """Items that references name; num_bytes: of all that was read to find them."""

    items: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    num_bytes: int = 0


async def _known_items(memory: ResponseMemory, ids: Sequence[str], tenant: str) -> _KnownItems:
    """One response after the other, so that only the items asked for are held together."""
    known, wanted = _KnownItems(), set(ids)
    names = list(dict.fromkeys(filter(None, map(response_of_item, ids))))
    if len(names) > MAX_REFERRED_RESPONSES:
        message = f"items of at most {MAX_REFERRED_RESPONSES} responses can be referred to"
        known.problems.append(Problem("input", message))
        return known
    for name in names:
        stored = await memory.store.get(tenant, name)
        if stored is not None:
            known.num_bytes += stored.num_bytes
            known.items |= {item["id"]: item for item in stored.items if item["id"] in wanted}
    return known


async def keep(
    memory: ResponseMemory, response: Mapping[str, Any], echo: ResponsesEcho, tenant: str
) -> None:
    """Store a finished response with its conversation. Raises: Unavailable."""
    stored = StoredResponse(
        response=response,
        items=[*echo.items, *_unsealed(response["output"])],
        num_earlier=echo.num_earlier,
        num_input=len(echo.items),
    )
    try:
        await memory.store.put(tenant, str(response["id"]), stored)
    except StoredTooLarge as err:
        log.warning("a response is not kept: %s", err, extra={"response_id": response["id"]})


def _unsealed(output: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Items without their seals: the store itself keeps the reasoning in clear."""
    return [
        {name: value for name, value in item.items() if name != "encrypted_content"}
        for item in output
    ]


def not_found(response_id: str) -> Problem:
    """A response that is not kept (any more)."""
    message = f"Response with id '{clip(response_id, 128)}' not found."
    return Problem("response_id", message, ErrorCode.NOT_FOUND, None, is_sentence=True)
