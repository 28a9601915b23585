"""Stored responses: continued, referred to, read, listed, deleted, by their tenant only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from rorqual_recipe.conversation import TextPart
from rorqual_recipe.model import ServedModel
from rorqual_recipe.output.events import AnswerFinished, ContentDelta, FinishReason, ReasoningDelta
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols.base import AnswerFacts, ParseLimits, TokenUsage
from rorqual_recipe.protocols.direct import DirectServices, RequestContext
from rorqual_recipe.protocols.responses import (
    DeleteResponse,
    ListInputItems,
    Responses,
    RetrieveResponse,
)
from rorqual_recipe.response_memory import ResponseMemory
from rorqual_recipe.response_store import StoredResponse
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.errors import Unavailable

from tests.support.chat_model_dir import MODEL_ID
from tests.support.response_store import MemoryResponseStore

Result = TypeVar("Result")
RESPONSES = Responses()
LIMITS = ParseLimits(max_choices=1, has_vision=False)
ANSWER = (ReasoningDelta("deep"), ContentDelta("Blue."), AnswerFinished(FinishReason.STOP))


async def compute(work: Callable[[], Result], num_bytes: int) -> Result:
    return work()


class Service:
    """Requests of one tenant against one store, answered at once."""

    def __init__(self, model: ServedModel, store: MemoryResponseStore, tenant: str = "t") -> None:
        memory = ResponseMemory(store, [b"k" * 32], seal_ttl_s=1e9, clock=ManualClock())
        self.services = DirectServices(model, LIMITS, compute, memory)
        self.tenant = tenant
        self.num_requests = 0

    async def parse(self, request_id: str = "x", **fields: object) -> Any:
        context = RequestContext(request_id, self.tenant, self.services)
        body = json.dumps({"model": MODEL_ID, "input": "q", **fields}).encode()
        prior = await RESPONSES.prepare(body, context)
        return RESPONSES.parse(body, ParseLimits(1, False, prior=prior)), context

    async def create(self, **fields: object) -> dict:
        self.num_requests += 1
        request_id = f"{self.tenant}{self.num_requests}"
        parsed, context = await self.parse(request_id, **fields)
        now_unix_s = int(ManualClock().now_unix_s())
        facts = AnswerFacts(request_id, MODEL_ID, now_unix_s, None, self.services.model.vocabulary)
        writer = RESPONSES.make_writer(facts, parsed)
        usage = TokenUsage(1, 0, 1)
        writer.write(0, ANSWER, usage)
        data = b"".join(writer.finish(usage))
        kept = RESPONSES.completed(writer, parsed, context)
        if kept is not None:
            await kept
        return json.loads(data)

    async def direct(self, protocol: Any, resource: str, **query: str) -> dict:
        body = json.dumps(query).encode()
        status, data = await protocol.answer(body, resource, self.tenant, self.services)
        assert status == 200
        return json.loads(data)


@pytest.fixture
def store() -> MemoryResponseStore:
    return MemoryResponseStore()


@pytest.fixture
def service(model: ServedModel, store: MemoryResponseStore) -> Service:
    return Service(model, store)


def refusal(caught: pytest.ExceptionInfo[RequestRefused]) -> dict:
    rendered = RESPONSES.render_refusal(caught.value.problems)
    return {"status": rendered.http_status, **json.loads(rendered.body_json)["error"]}


def turns(parsed: Any) -> list[tuple[str, str, str | None]]:
    return [
        (m.role.value, "".join(p.text for p in m.parts if isinstance(p, TextPart)), m.reasoning)
        for m in parsed.conversation.messages
    ]


async def test_a_response_is_continued_with_all_that_was_said(service: Service) -> None:
    first = await service.create(input="Colour?", instructions="Old rules")
    second = await service.create(input="Sure?", previous_response_id=first["id"])
    third, _ = await service.parse(
        input="Really?", previous_response_id=second["id"], instructions="New rules"
    )
    assert turns(third) == [
        ("system", "New rules", None),
        ("user", "Colour?", None),
        ("assistant", "Blue.", "deep"),
        ("user", "Sure?", None),
        ("assistant", "Blue.", "deep"),
        ("user", "Really?", None),
    ]
    assert third.echo.fields["previous_response_id"] == second["id"]


async def test_only_the_tenant_knows_its_responses(
    service: Service, model: ServedModel, store: MemoryResponseStore
) -> None:
    kept = await service.create()
    stranger = Service(model, store, tenant="u")
    with pytest.raises(RequestRefused) as caught:
        await stranger.parse(previous_response_id=kept["id"])
    error = refusal(caught)
    assert (error["status"], error["param"]) == (400, "previous_response_id")
    assert error["code"] == "previous_response_not_found"
    with pytest.raises(RequestRefused) as caught:
        await stranger.direct(RetrieveResponse(), kept["id"])
    assert refusal(caught)["status"] == 404


async def test_a_missing_response_is_told_with_all_other_problems(service: Service) -> None:
    with pytest.raises(RequestRefused) as caught:
        await service.parse(previous_response_id="resp_none", temperature=9, background=True)
    params = {problem.param for problem in caught.value.problems}
    assert params == {"previous_response_id", "temperature", "background"}


async def test_store_false_keeps_nothing(service: Service, store: MemoryResponseStore) -> None:
    answered = await service.create(store=False)
    assert answered["store"] is False and store.values == {}


async def test_items_are_referred_to_by_id(service: Service) -> None:
    first = await service.create(input="Colour?")
    thought, said = first["output"]
    references = [{"type": "item_reference", "id": thought["id"]}, {"id": said["id"]}]
    parsed, _ = await service.parse(input=[*references, {"role": "user", "content": "go"}])
    assert turns(parsed) == [("assistant", "Blue.", "deep"), ("user", "go", None)]


async def test_a_stored_response_is_read_and_deleted(service: Service) -> None:
    kept = await service.create(metadata={"a": "b"})
    assert await service.direct(RetrieveResponse(), kept["id"]) == kept
    deleted = await service.direct(DeleteResponse(), kept["id"])
    assert deleted == {"id": kept["id"], "object": "response", "deleted": True}
    for protocol in (RetrieveResponse(), DeleteResponse(), ListInputItems()):
        with pytest.raises(RequestRefused) as caught:
            await service.direct(protocol, kept["id"])
        assert refusal(caught)["status"] == 404


@pytest.mark.parametrize(
    ("query", "refused"),
    [
        ({"stream": "true", "starting_after": "7"}, {"stream", "starting_after"}),
        ({"stream": "false", "starting_after": "0"}, {"starting_after"}),
    ],
)
async def test_a_stored_response_is_not_streamed_again(
    service: Service, query: dict[str, str], refused: set[str]
) -> None:
    kept = await service.create()
    with pytest.raises(RequestRefused) as caught:
        await service.direct(RetrieveResponse(), kept["id"], **query)
    assert {problem.param for problem in caught.value.problems} == refused
    error = refusal(caught)
    assert error["status"] == 400 and "Last-Event-ID" in error["message"]
    assert await service.direct(RetrieveResponse(), kept["id"], stream="false") == kept


async def test_input_items_are_listed_in_pages(service: Service) -> None:
    first = await service.create(input="one")
    items = [{"role": "user", "content": "two"}, {"role": "user", "content": "three"}]
    second = await service.create(input=items, previous_response_id=first["id"])
    listing = ListInputItems()
    newest = await service.direct(listing, second["id"], limit="2")
    assert [item["content"][0]["text"] for item in newest["data"]] == ["three", "two"]
    assert newest["has_more"] and newest["last_id"] == newest["data"][-1]["id"]
    oldest = await service.direct(listing, second["id"], order="asc")
    kinds = [item["type"] for item in oldest["data"]]
    assert kinds == ["message", "reasoning", "message", "message", "message"]
    rest = await service.direct(listing, second["id"], order="asc", after=oldest["data"][2]["id"])
    assert rest["data"] == oldest["data"][3:] and not rest["has_more"]
    for query in ({"limit": "0"}, {"limit": "many"}, {"order": "up"}, {"after": "none"}):
        with pytest.raises(RequestRefused) as caught:
            await service.direct(listing, second["id"], **query)
        assert refusal(caught)["param"] in query


async def test_sealed_reasoning_of_another_tenant_is_refused(
    service: Service, model: ServedModel, store: MemoryResponseStore
) -> None:
    answer = await service.create(include=["reasoning.encrypted_content"], store=False)
    thought = answer["output"][0]
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    parsed, _ = await service.parse(input=[sealed, {"role": "user", "content": "go"}])
    assert turns(parsed)[0] == ("assistant", "", "deep")
    with pytest.raises(RequestRefused) as caught:
        await Service(model, store, tenant="u").parse(input=[sealed])
    assert refusal(caught)["param"] == "input[0].encrypted_content"


async def test_a_store_that_is_away_stops_only_what_needs_it(
    service: Service, store: MemoryResponseStore
) -> None:
    store.is_down = store.is_known_down = True
    parsed, _ = await service.parse()
    assert parsed.echo.store is False
    assert [warning.partition(":")[0] for warning in parsed.warnings] == ["store"]
    quiet, _ = await service.parse(store=False)
    assert quiet.warnings == []
    with pytest.raises(Unavailable):
        await service.parse(previous_response_id="resp_x")


async def test_what_is_too_large_is_not_kept_and_that_is_told(model: ServedModel) -> None:
    store = MemoryResponseStore(max_bytes=2000)
    service = Service(model, store)
    parsed, _ = await service.parse(input="x" * 3000)
    assert not parsed.echo.store and parsed.warnings[0].startswith("store: ")
    await service.create(input="x" * 1500, metadata={"k": "v" * 400})
    assert store.values == {}


async def test_a_conversation_that_has_grown_too_large_is_not_kept_and_that_is_told(
    model: ServedModel,
) -> None:
    service = Service(model, MemoryResponseStore(max_bytes=4000))
    first = await service.create(input="x" * 1500)
    parsed, _ = await service.parse(input="y" * 1500, previous_response_id=first["id"])
    assert not parsed.echo.store and parsed.warnings[0].startswith("store: ")


@pytest.mark.parametrize("damaged", [b"", b"no zlib", b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_a_damaged_record_counts_as_missing(damaged: bytes) -> None:
    assert StoredResponse.decode(damaged, 1 << 20) is None


async def test_references_reach_a_bounded_number_of_responses(service: Service) -> None:
    references = [{"type": "item_reference", "id": f"msg_r{index}_0"} for index in range(40)]
    with pytest.raises(RequestRefused) as caught:
        await service.parse(input=references)
    assert caught.value.problems[0].param == "input"


async def test_what_lies_before_a_request_counts_as_work(service: Service) -> None:
    first = await service.create(input="x" * 5000)
    body = json.dumps({"model": MODEL_ID, "input": "q", "previous_response_id": first["id"]})
    context = RequestContext("x", service.tenant, service.services)
    prior = await RESPONSES.prepare(body.encode(), context)
    assert prior.num_bytes > 5000
