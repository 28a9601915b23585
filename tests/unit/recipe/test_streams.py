"""A request's stream: order, exactly once, and the same answer streamed or not."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.model import ServedModel
from rorqual_recipe.output.choice import ChoiceText
from rorqual_recipe.output.sequence import DeltaOrder
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import AnswerFacts
from rorqual_recipe.streams import Choice, Delta, RequestStream

CHAT = PROTOCOLS["chat_completions"]


def make_stream(
    model: ServedModel, *, stream: bool, stops: tuple[str, ...] = (), num_choices: int = 1
) -> RequestStream:
    facts = AnswerFacts(
        request_id="r1",
        model="tiny-chat",
        created_unix_s=1,
        system_fingerprint=None,
        num_choices=num_choices,
        include_usage=True,
        logprobs=False,
        vocabulary=model.vocabulary,
    )
    return RequestStream(
        request_id="r1",
        gateway_id="g1",
        adapter=CHAT,
        writer=CHAT.make_writer(facts, stream=stream),
        choices=[
            Choice(ChoiceText(model.vocabulary, stops, logprobs=False), DeltaOrder(64), 0.0)
            for _ in range(num_choices)
        ],
        num_prompt_tokens=3,
        expires_s=1e9,
        prompt_tickets=[],
    )


def play(stream: RequestStream, deltas: list[Delta]) -> list[bytes]:
    data: list[bytes] = []
    seqs = []
    for delta in deltas:
        events = stream.absorb(delta, "decode-1", 1, 0.0).events
        if events is not None:
            seqs.append(events.seq)
            data += events.data
    assert seqs == list(range(len(seqs)))
    return data


def text_of(chunks: list[bytes]) -> str:
    choices = [c for chunk in chunks for c in json.loads(chunk)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@given(
    tokens=st.lists(st.integers(0, 599), min_size=1, max_size=25),
    stops=st.lists(st.sampled_from(["e", "qu", "the", " f"]), max_size=2),
    draw=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_streaming_equals_not_streaming_in_any_order_with_repeats(
    model, tokens, stops, draw
) -> None:
    ends = sorted(draw.draw(st.sets(st.integers(1, len(tokens)))) | {len(tokens)})
    starts = [0, *ends[:-1]]
    deltas = [
        Delta(0, start, tokens[start:end], finish_reason="length" if end == len(tokens) else None)
        for start, end in zip(starts, ends, strict=True)
    ]
    arriving = draw.draw(st.permutations(deltas + draw.draw(st.lists(st.sampled_from(deltas)))))
    chunks = play(make_stream(model, stream=True, stops=tuple(stops)), arriving)
    whole = make_stream(model, stream=False, stops=tuple(stops))
    body = json.loads(play(whole, deltas)[-1])
    assert text_of(chunks) == body["choices"][0]["message"]["content"]
    finishes = [c["finish_reason"] for k in chunks for c in json.loads(k)["choices"]]
    assert [reason for reason in finishes if reason] == [body["choices"][0]["finish_reason"]]
    assert json.loads(chunks[-1])["usage"] == body["usage"]


def test_overlapping_deltas_count_each_token_once(model: ServedModel) -> None:
    stream = make_stream(model, stream=False)
    data = play(
        stream,
        [
            Delta(0, 0, [10, 11, 12]),
            Delta(0, 1, [11, 12, 13]),
            Delta(0, 2, [12, 13, 14], finish_reason="stop", num_cached_tokens=2),
        ],
    )
    usage = json.loads(data[0])["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}
    assert usage["total_tokens"] == 8


def test_a_gap_is_reported_until_it_is_filled(model: ServedModel) -> None:
    stream = make_stream(model, stream=True)
    assert stream.absorb(Delta(0, 2, [12]), "d", 1, 0.0).has_gap
    assert stream.absorb(Delta(0, 5, [15]), "d", 1, 0.0).has_gap
    assert stream.absorb(Delta(0, 0, [10, 11]), "d", 1, 0.0).has_gap
    assert not stream.absorb(Delta(0, 3, [13, 14]), "d", 1, 0.0).has_gap
    assert stream.usage.completion_tokens == 6


def test_a_former_incarnation_is_not_listened_to(model: ServedModel) -> None:
    stream = make_stream(model, stream=True)
    stream.absorb(Delta(0, 0, [10]), "d", 2, 0.0)
    assert stream.absorb(Delta(0, 1, [99]), "d", 1, 0.0).events is None
    stream.absorb(Delta(0, 1, [11]), "d", 2, 0.0)
    assert stream.usage.completion_tokens == 2


def test_the_first_news_of_a_collected_answer_is_an_empty_event(model: ServedModel) -> None:
    stream = make_stream(model, stream=False)
    first = stream.absorb(Delta(0, 0, [10]), "d", 1, 0.0).events
    assert first is not None and first.data == [] and not first.is_last
    assert stream.absorb(Delta(0, 1, [11]), "d", 1, 0.0).events is None


def test_one_choice_may_stop_while_the_other_goes_on(model: ServedModel, model_dir) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    stream = make_stream(model, stream=True, stops=("fox",), num_choices=2)
    ids = tokenizer.encode("The quick brown fox jumps").ids
    hit = stream.absorb(Delta(0, 0, ids), "d", 1, 0.0)
    assert hit.hit_stop and not stream.is_finished
    other = stream.absorb(Delta(1, 0, ids[:2], finish_reason="length"), "d", 1, 0.0)
    assert not other.hit_stop and stream.is_finished
    assert other.events.finish_reasons == ["stop", "length"]
