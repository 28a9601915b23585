"""A request's stream: order, exactly once, and the same answer streamed or not."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.choices import Choice, Delta
from rorqual_recipe.conversation import Conversation, ParsedRequest, SamplingOptions
from rorqual_recipe.event_log import EndedStreams, EventLog
from rorqual_recipe.model import ServedModel
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.plan import AnswerPlan
from rorqual_recipe.output.sequence import DeltaOrder
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import AnswerFacts
from rorqual_recipe.protocols.chat.chunks import DONE
from rorqual_recipe.streams import RequestStream

CHAT = PROTOCOLS["chat_completions"]


def make_stream(
    model: ServedModel, *, stream: bool, stops: tuple[str, ...] = (), num_choices: int = 1
) -> RequestStream:
    facts = AnswerFacts(
        request_id="r1",
        model="tiny-chat",
        created_unix_s=1,
        system_fingerprint=None,
        vocabulary=model.vocabulary,
        num_prompt_tokens=3,
    )
    parsed = ParsedRequest(
        model="tiny-chat",
        conversation=Conversation(()),
        sampling=SamplingOptions(),
        num_choices=num_choices,
        stream=stream,
        include_usage=True,
    )
    return RequestStream(
        request_id="r1",
        gateway_id="g1",
        adapter=CHAT,
        writer=CHAT.make_writer(facts, parsed),
        choices=[
            Choice(AnswerReader(model.vocabulary, AnswerPlan(stops=stops)), DeltaOrder(64), 0.0)
            for _ in range(num_choices)
        ],
        num_prompt_tokens=3,
        expires_s=1e9,
        log=EventLog(1 << 20),
        prompts=(),
    )


def play(stream: RequestStream, deltas: list[Delta]) -> list[bytes]:
    data: list[bytes] = []
    seqs = []
    for delta in deltas:
        for events in stream.absorb(delta, "decode-1", 1, 0.0).events:
            seqs.append(events.seq)
            data += events.data
    assert seqs == list(range(len(seqs)))
    return [item.removeprefix(b"data: ").strip() for item in data if item != DONE]


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
    body = json.loads(b"".join(play(whole, deltas)))
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
            Delta(0, 1, [11, 12, 13], cache_miss_reason="never_stored"),
            Delta(
                *(0, 2, [12, 13, 14]),
                finish_reason="stop",
                num_cached_tokens=2,
                cache_miss_reason="evicted",
            ),
        ],
    )
    usage = json.loads(data[0])["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["cache_miss_reason"] == "evicted"
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
    assert stream.absorb(Delta(0, 1, [99]), "d", 1, 0.0).events == []
    stream.absorb(Delta(0, 1, [11]), "d", 2, 0.0)
    assert stream.usage.completion_tokens == 2


def test_the_first_news_of_a_collected_answer_is_an_empty_event(model: ServedModel) -> None:
    stream = make_stream(model, stream=False)
    (first,) = stream.absorb(Delta(0, 0, [10]), "d", 1, 0.0).events
    assert first.data == [] and not first.is_last
    assert stream.absorb(Delta(0, 1, [11]), "d", 1, 0.0).events == []


def test_one_choice_may_stop_while_the_other_goes_on(model: ServedModel, model_dir) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    stream = make_stream(model, stream=True, stops=("fox",), num_choices=2)
    ids = tokenizer.encode("The quick brown fox jumps").ids
    hit = stream.absorb(Delta(0, 0, ids), "d", 1, 0.0)
    assert hit.hit_stop and not stream.is_finished
    other = stream.absorb(Delta(1, 0, ids[:2], finish_reason="length"), "d", 1, 0.0)
    assert not other.hit_stop and stream.is_finished
    assert other.events[-1].finish_reasons == ["stop", "length"]


def test_a_huge_answer_travels_in_messages_that_fit_the_bus(model: ServedModel) -> None:
    tokens = [300 + i % 200 for i in range(200_000)]
    whole = make_stream(model, stream=False)
    events = whole.absorb(Delta(0, 0, tokens, finish_reason="length"), "d", 1, 0.0).events
    assert len(events) > 1
    assert all(event.num_bytes < 500_000 for event in events)
    assert [event.is_last for event in events] == [False] * (len(events) - 1) + [True]
    body = json.loads(b"".join(part for event in events for part in event.data))
    assert body["usage"]["completion_tokens"] == len(tokens)
    streamed = make_stream(model, stream=True)
    chunks = play(streamed, [Delta(0, 0, tokens, finish_reason="length")])
    assert max(map(len, chunks)) < 100_000
    assert text_of(chunks) == body["choices"][0]["message"]["content"]


def test_events_are_kept_in_bounds_and_forgotten_in_time() -> None:
    log = EventLog(max_bytes=100)
    for seq in range(5):
        log.append(seq, 40, f"event {seq}")
    assert log.since(3) == ["event 3", "event 4"]
    assert log.since(5) == []
    assert log.since(1) is None
    ended = EndedStreams(ttl_s=30, max_streams=2)
    for number in range(3):
        ended.add(f"r{number}", log, float(number))
    assert ended.get("r0") is None
    assert ended.get("r2") is log
    ended.forget_expired(31.5)
    assert (len(ended), ended.get("r2")) == (1, log)


def test_tokens_of_a_whole_answer_are_counted_while_it_is_made(model: ServedModel) -> None:
    """A client may leave before the end; what was generated until then is known."""
    stream = make_stream(model, stream=False)
    counts = []
    for index in range(6):
        now_s = 0.4 * index
        absorbed = stream.absorb(Delta(0, index, [300]), "decode-1", 1, now_s)
        counts += [(e.usage.completion_tokens, e.data, e.is_last) for e in absorbed.events]
    assert counts == [(1, [], False), (4, [], False)]
