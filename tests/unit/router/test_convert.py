"""A submission that can't be right is refused by the name of its field."""

import math

import pytest
from rorqual_proto.v1.generation_pb2 import Generation, SamplingParams
from rorqual_proto.v1.kvmeta_pb2 import Match, MatchReply
from rorqual_proto.v1.router_pb2 import PlaceRequest, SubmitRequest
from rorqual_proto.v1.tensor_pb2 import Payload
from rorqual_router.convert import (
    match_from_wire,
    placement_request_from_wire,
    submission_from_wire,
)
from rorqual_runtime.errors import InvalidRequest


def generation(**changes):
    fields = {
        "request_id": "r",
        "prompt": Payload(inline=b"\x01\x00\x00\x00"),
        "num_prompt_tokens": 1,
        "sampling": SamplingParams(max_new_tokens=1),
        "cache_namespace": "n",
    }
    return Generation(**{**fields, **changes})


@pytest.mark.parametrize(
    ("generations", "param"),
    [
        ([], "generations"),
        ([generation(request_id="")], "generations[0].request_id"),
        ([generation(num_prompt_tokens=0)], "generations[0].num_prompt_tokens"),
        ([generation(prompt=Payload())], "generations[0].prompt"),
        ([generation(sampling=SamplingParams())], "generations[0].sampling.max_new_tokens"),
        ([generation(), generation()], "generations"),
        ([generation(), generation(request_id="s")], "generations[1].request_id"),
        ([generation(), generation(cache_namespace="m")], "generations[1].cache_namespace"),
        ([generation(), generation(num_prompt_tokens=2)], "generations[1].num_prompt_tokens"),
    ],
)
def test_the_offending_field_is_named(generations, param):
    with pytest.raises(InvalidRequest) as refusal:
        submission_from_wire(SubmitRequest(generations=generations))
    assert refusal.value.param == param


def test_the_earliest_deadline_counts_and_none_is_infinity():
    choices = [generation(deadline_unix_s=9.0), generation(choice_index=1, deadline_unix_s=7.0)]
    assert submission_from_wire(SubmitRequest(generations=choices)).deadline_unix_s == 7.0
    open_ended = submission_from_wire(SubmitRequest(generations=[generation()]))
    assert open_ended.deadline_unix_s == math.inf


def test_a_match_beyond_the_prompt_is_cut():
    reply = MatchReply(match=Match(num_matched_blocks=9, lease_id="l"))
    assert match_from_wire(reply, 4).num_blocks == 4


def test_choices_are_placed_independently():
    first, second = (
        placement_request_from_wire(
            PlaceRequest(request_id="r", choice_index=index, num_context_tokens=5)
        )
        for index in range(2)
    )
    assert first.request_id != second.request_id
