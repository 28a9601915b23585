"""Streams read as the reference reads them, except where DIFFERENCES.md says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.recipe.answers import MARKS
from tests.vectors.models import reference_profile
from tests.vectors.outcome import Outcome, known_entries
from tests.vectors.stream_generator import StreamGenerator
from tests.vectors.stream_shapes import compare_streams
from tests.vectors.streams import StreamChecks, reference_frames

NUM_CASES = 300


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bytes, some words and the marks: enough for ids of every kind."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (256 + index for index in range(256 - len(printable)))
    alphabet = [chr(code) for code in (*printable, *others)]
    vocab = {char: index for index, char in enumerate(alphabet)}
    vocab["He"], vocab["ll"], vocab["ĊĊ"] = 256, 257, 258
    added = [
        {
            "id": 259 + index,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": content.startswith("<｜"),
        }
        for index, content in enumerate((*_tokens(), *MARKS))
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    content = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {**byte_level, "trim_offsets": True},
        "decoder": {**byte_level, "trim_offsets": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["H e", "l l", "Ċ Ċ"]},
    }
    path = tmp_path_factory.mktemp("reference") / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _tokens() -> list[str]:
    marks = {"<think>", "</think>", "｜DSML｜"}
    tokens = reference_profile("v4.1")["tokens"].values()
    return [spelling for spelling in tokens if spelling not in marks]


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_every_difference_has_its_entry(protocol: str, tokenizer: Path) -> None:
    generator = StreamGenerator(protocol, 7, tokenizer)
    checks = StreamChecks(tokenizer)
    entries = known_entries()
    unexplained = []
    for number in range(NUM_CASES):
        case = generator.case(number)
        for difference in checks.check(case).differences:
            if difference.entry not in entries:
                unexplained.append((case["id"], difference.line()))
    checks.close()
    assert unexplained == []


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_an_unexplained_shape_is_seen(protocol: str, tokenizer: Path) -> None:
    checks = StreamChecks(tokenizer)
    generator = StreamGenerator(protocol, 7, tokenizer)
    cases = (generator.case(number) for number in range(NUM_CASES))
    case = next(case for case in cases if _differs_in_shape_only(checks.check(case)))
    *ours, (event, data) = checks.frames(case)
    checks.close()
    theirs = reference_frames(case["expect"])
    odd = (event, {**data, "odd": 1})
    for changed in (ours, [*ours, odd], [odd, *ours]):
        assert any(d.entry is None for d in compare_streams(protocol, changed, theirs))


def _differs_in_shape_only(outcome: Outcome) -> bool:
    return all(difference.field.startswith("shape") for difference in outcome.differences)


def test_an_unexplained_difference_is_seen(tokenizer: Path) -> None:
    checks = StreamChecks(tokenizer)
    case = StreamGenerator("chat", 7, tokenizer).case(0)
    case["chunks"][1:-1] = [{"kind": "text", "text": "something else", "count": 1}]
    assert not checks.check(case).passed
    checks.close()
