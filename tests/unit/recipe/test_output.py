"""Any portions of the same tokens give the same answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.model import ServedModel
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.detokeniser import Detokeniser
from rorqual_recipe.output.events import AnswerFinished, ContentDelta, FinishReason, TokenLogprob
from rorqual_recipe.output.plan import AnswerPlan
from rorqual_recipe.output.sequence import Arrival, DeltaOrder
from rorqual_recipe.output.stop_strings import StopMatcher
from rorqual_recipe.tokens.vocabulary import Vocabulary, make_vocabulary
from tokenizers import Tokenizer

TOKEN_IDS = st.lists(st.integers(0, 599), max_size=40)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)


def portions(draw: st.DataObject, items: list) -> list[list]:
    """The items in some portions."""
    result, rest = [], items
    while rest:
        size = draw.draw(st.integers(1, len(rest)))
        result.append(rest[:size])
        rest = rest[size:]
    return result


@given(token_ids=TOKEN_IDS)
@settings(max_examples=200, deadline=None)
def test_text_equals_the_tokenizers_own_decode(model, model_dir: Path, token_ids) -> None:
    reference = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    detokeniser = Detokeniser(model.vocabulary)
    pieces = [detokeniser.feed(token) for token in token_ids]
    text = "".join(pieces) + detokeniser.finish()
    assert text == reference.decode(token_ids, skip_special_tokens=True)


def test_a_character_appears_with_its_last_byte(model: ServedModel, model_dir: Path) -> None:
    vocabulary = Vocabulary(tuple(bytes([b]) for b in range(256)), {}, False)
    detokeniser = Detokeniser(vocabulary)
    pieces = [detokeniser.feed(byte) for byte in "é👩".encode()]
    assert pieces == ["", "é", "", "", "", "👩"]
    assert detokeniser.finish() == ""
    detokeniser.feed(0xE4)
    assert detokeniser.finish() == "\ufffd"


def test_sentencepiece_tokens_are_read_too() -> None:
    tokenizer = {
        "model": {"vocab": {"▁Hello": 0, "▁wor": 1, "ld": 2, "<0xC3>": 3, "<0xA9>": 4}},
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}],
        },
    }
    detokeniser = Detokeniser(make_vocabulary(tokenizer, ()))
    assert "".join(map(detokeniser.feed, range(5))) == "Hello worldé"


def expected_cut(text: str, stops: list[str]) -> str:
    """By definition: the hit that ends first, and of those the one that is listed first."""
    for end in range(1, len(text) + 1):
        hits = [end - len(s) for s in stops if text[:end].endswith(s)]
        if hits:
            return text[: hits[0]]
    return text


@given(st.text("abc", max_size=30), STOPS, st.data())
def test_stop_strings_cut_at_the_same_place_however_text_arrives(text, stops, draw) -> None:
    matcher = StopMatcher(stops)
    longest = max(map(len, stops)) - 1
    out = ""
    for portion in portions(draw, list(text)):
        out += matcher.feed("".join(portion))
        assert matcher.num_held <= longest
    if matcher.hit is None:
        out += matcher.finish()
    assert out == expected_cut(text, stops)


@given(
    TOKEN_IDS,
    st.lists(st.sampled_from(["e", "qu", "the", " f", "\ufffd", "o"]), max_size=3),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_any_split_of_a_token_stream_gives_the_same_choice(model, token_ids, stops, draw) -> None:
    def run(deltas: list[list[int]]):
        choice = AnswerReader(model.vocabulary, AnswerPlan(stops=tuple(stops), logprobs=True))
        events = []
        for delta in deltas:
            events += choice.feed(delta, [TokenLogprob(t, -1.0) for t in delta])
        events += choice.finish(FinishReason.LENGTH)
        contents = [event for event in events if isinstance(event, ContentDelta)]
        return (
            "".join(event.text for event in contents),
            [entry.token_id for event in contents for entry in event.logprobs],
            [event for event in events if isinstance(event, AnswerFinished)],
            choice.num_tokens,
        )

    whole = run([token_ids])
    assert run([[t] for t in token_ids]) == whole
    assert run(portions(draw, token_ids)) == whole
    assert len(whole[2]) == 1


def test_usage_counts_up_to_the_token_that_completed_the_stop() -> None:
    vocabulary = Vocabulary(tuple(bytes([b]) for b in range(256)), {}, False)
    choice = AnswerReader(vocabulary, AnswerPlan(stops=("bc",), logprobs=True))
    ids = list(b"abcdef")
    content, end = choice.feed(ids, [TokenLogprob(t, -1.0) for t in ids])
    assert content == ContentDelta("a", (TokenLogprob(ord("a"), -1.0),))
    assert (end, choice.num_tokens) == (AnswerFinished(FinishReason.STOP, "bc"), 3)
    assert not choice.feed([ord("z")])
    assert not choice.finish(FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("seq", "num_tokens", "final", "arrival"),
    [
        (5, 1, False, Arrival.NEXT),
        (3, 4, False, Arrival.NEXT),
        (5, 0, True, Arrival.NEXT),
        (3, 2, True, Arrival.NEXT),
        (3, 2, False, Arrival.DUPLICATE),
        (2, 1, True, Arrival.DUPLICATE),
        (6, 1, False, Arrival.EARLY),
    ],
)
def test_a_delta_is_next_seen_or_early(seq, num_tokens, final, arrival) -> None:
    order: DeltaOrder[str] = DeltaOrder(max_early=2, next_seq=5)
    assert order.classify(seq, num_tokens, is_final=final) is arrival


def test_a_restarted_sender_silences_its_former_self() -> None:
    order: DeltaOrder[str] = DeltaOrder(max_early=2)
    assert order.accept_sender("", 0)
    assert order.decode_id == ""  # nobody to be asked yet
    assert order.accept_sender("decode-1", 5)
    assert order.accept_sender("", 0)
    assert (order.decode_id, order.incarnation) == ("decode-1", 5)
    assert order.accept_sender("decode-1", 6)
    assert not order.accept_sender("decode-1", 5)
    assert order.accept_sender("decode-2", 1)


def test_only_the_highest_run_of_a_generation_is_heard() -> None:
    order: DeltaOrder[str] = DeltaOrder(max_early=2)
    assert order.accept_sender("decode-1", 5, run=1)
    assert not order.accept_sender("decode-2", 9, run=0)
    assert not order.accept_sender("", 0, run=0)
    order.begin_run(7)
    assert order.decode_id == ""
    assert not order.accept_sender("decode-1", 5, run=2)
    assert order.accept_sender("decode-1", 5, run=7)
    assert order.accept_sender("decode-2", 1, run=8)
    assert (order.decode_id, order.run) == ("decode-2", 8)


def test_early_deltas_are_bounded_and_come_out_in_order() -> None:
    order: DeltaOrder[str] = DeltaOrder(max_early=2)
    order.keep_early(7, "c")
    order.keep_early(5, "b")
    order.keep_early(9, "d")
    assert order.pop_ready() is None
    order.next_seq = 5
    assert order.pop_ready() == "b"
    assert order.pop_ready() is None
    order.next_seq = 9
    assert [order.pop_ready(), order.pop_ready()] == ["c", None]
