"""What travels between gateway and recipe, and what the edge makes of it."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from rorqual_gateway import convert
from rorqual_gateway.errors import RequestFailed
from rorqual_gateway.metrics import LATENCY_BUCKETS_S, GatewayMetrics
from rorqual_gateway.sinks import TokenUsage
from rorqual_proto.v1 import error_pb2, generation_pb2, recipe_pb2


def test_recipes_error_is_passed_on_as_it_is() -> None:
    error = recipe_pb2.ProtocolError(
        http_status=404,
        body_json=b'{"error":1}',
        info=error_pb2.ErrorInfo(code=error_pb2.ERROR_CODE_NOT_FOUND),
    )
    with pytest.raises(RequestFailed) as caught:
        convert.encoded_from_wire(recipe_pb2.EncodeReply(error=error))
    assert caught.value.error.status == 404
    assert caught.value.error.body == b'{"error":1}'
    assert caught.value.error.code == "NOT_FOUND"


def test_generations_are_handed_on_unchanged() -> None:
    generations = [
        generation_pb2.Generation(request_id="r", choice_index=i, model="m") for i in range(2)
    ]
    reply = recipe_pb2.EncodeReply(
        encoded=recipe_pb2.Encoded(generations=generations, stream=True, warnings=["w"])
    )
    encoded = convert.encoded_from_wire(reply)
    [submit] = encoded.submits
    assert list(submit.generations) == generations
    assert (encoded.model, encoded.num_choices, encoded.stream) == ("m", 2, True)


def test_each_prompt_is_submitted_by_itself() -> None:
    """Router looks up one prompt's prefix for all generations that come together."""
    prompts = [b"aaaa", b"aaaa", b"bbbb"]
    generations = [
        generation_pb2.Generation(request_id="r", choice_index=i, prompt={"inline": prompt})
        for i, prompt in enumerate(prompts)
    ]
    reply = recipe_pb2.EncodeReply(encoded=recipe_pb2.Encoded(generations=generations))
    submits = convert.encoded_from_wire(reply).submits
    assert [[g.choice_index for g in s.generations] for s in submits] == [[0, 1], [2]]


def test_a_whole_answer_needs_no_router() -> None:
    answer = recipe_pb2.DirectAnswer(http_status=200, body={"inline": b"{}"})
    found = convert.encoded_from_wire(recipe_pb2.EncodeReply(answer=answer))
    assert isinstance(found, convert.DirectAnswer)
    assert (found.http_status, found.body.inline) == (200, b"{}")


def test_usage_comes_with_every_event_and_reasons_with_the_last() -> None:
    usage = recipe_pb2.Usage(
        prompt_tokens=3, cached_tokens=1, completion_tokens=2, reasoning_tokens=1
    )
    batch = recipe_pb2.EventBatch(
        streams=[
            recipe_pb2.StreamEvents(request_id="a", seq=0, data=[b"1", b"2"], usage=usage),
            recipe_pb2.StreamEvents(
                request_id="b", seq=4, done=True, usage=usage, finish_reasons=["stop"]
            ),
        ]
    )
    (first_id, first), (last_id, last) = convert.events_from_wire(batch)
    assert (first_id, first.done, list(first.data)) == ("a", False, [b"1", b"2"])
    assert first.usage == last.usage == TokenUsage(3, 1, 2, 1)
    assert (last_id, last.seq, last.done) == ("b", 4, True)
    assert last.finish_reasons == ("stop",)


def test_latency_buckets_resolve_single_milliseconds() -> None:
    assert sum(bucket <= 0.005 for bucket in LATENCY_BUCKETS_S) >= 5
    assert list(LATENCY_BUCKETS_S) == sorted(LATENCY_BUCKETS_S)


def test_a_request_leaves_no_gauge_behind() -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    with metrics.request("m", "chat") as meters:
        assert b'vllm:num_requests_waiting{model_name="m"} 1.0' in metrics.render()
        meters.first_token(0.01)
        assert b'vllm:num_requests_waiting{model_name="m"} 0.0' in metrics.render()
    text = metrics.render()
    assert b'vllm:num_requests_running{model_name="m"} 0.0' in text
    assert b'vllm:time_to_first_token_seconds_count{model_name="m"} 1.0' in text
