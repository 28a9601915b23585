"""What is kept under a key comes back as it was, and no two keys share a place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rorqual_gateway.endpoints import Endpoint
from rorqual_gateway.kept_answers import KeptAnswer, digest_of, merged, name_of
from rorqual_runtime.errors import InvalidRequest

KEPT = KeptAnswer("d", "r", "gateway-1", 1.5, 601.5, "recipe-2", "recipe-1", 1, "m", 2, 9, True, 40)


@pytest.mark.parametrize("body", [None, b"", b"data: {}\n\n" * 100])
def test_an_answer_is_read_back(body: bytes | None) -> None:
    kept = replace(KEPT, body=body)
    assert KeptAnswer.from_bytes(kept.to_bytes()) == kept


@pytest.mark.parametrize("data", [b"", b"{}", b'{"body": true}\nxx', b'{"body": false, "x": 1}\n'])
def test_bytes_of_another_make_are_refused(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        KeptAnswer.from_bytes(data)


def test_places_and_digests_tell_their_parts_apart() -> None:
    assert len({name_of("a", "bc"), name_of("ab", "c"), name_of("abc", "")}) == 3
    chat, text = Endpoint.CHAT_COMPLETIONS, Endpoint.COMPLETIONS
    parts = [(chat, "", b"x"), (text, "", b"x"), (chat, "x", b""), (chat, "", b"y")]
    assert len({digest_of(*part) for part in parts}) == 4


@pytest.mark.parametrize("key", ["x" * 256, "a\nb"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        name_of("tenant", key)


def test_who_knows_less_changes_nothing_but_the_charge() -> None:
    """KEPT is of the second instance, and 40 of its tokens are charged."""
    late = replace(KEPT, take_over=0, recipe_id="recipe-1", charged_tokens=60)
    assert merged(KEPT, late) == replace(KEPT, charged_tokens=60)
    whole = replace(KEPT, body=b"x", charged_tokens=0)
    assert merged(whole, KEPT) == replace(KEPT, body=b"x")
    assert merged(KEPT, whole) == replace(KEPT, body=b"x")
    moved = replace(KEPT, take_over=2, recipe_id="recipe-3")
    assert merged(KEPT, moved) == moved
    assert merged(KEPT, replace(KEPT, request_id="another")) == KEPT
