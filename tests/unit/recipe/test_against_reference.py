"""The same requests through the reference package: everything equal, or explained by an entry."""

from __future__ import annotations

import inspect
import re

import pytest

from tests.vectors import request_rules, stream_rules, stream_shapes, undo
from tests.vectors.generated import outcomes
from tests.vectors.outcome import DIFFERENCES, known_entries

NUM_CASES = 300
SEED = 20260730


@pytest.mark.parametrize("kind", ["requests", "rare"])
@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_requests_are_understood_as_by_the_reference_or_differ_for_a_reason(
    protocol: str, kind: str
) -> None:
    found = list(outcomes(kind, protocol, SEED, NUM_CASES))
    unexplained = [
        f"{outcome.case_id}: {difference.line()}"
        for outcome in found
        for difference in outcome.differences
        if difference.entry is None
    ]
    assert unexplained == []
    assert sum(not outcome.differences for outcome in found) > NUM_CASES / 2


def test_every_entry_has_a_rule_and_every_rule_an_entry() -> None:
    rules = (request_rules, undo, stream_rules, stream_shapes)
    sources = "".join(map(inspect.getsource, rules))
    assert set(re.findall(r"D-[A-Z]{3}-\d\d", sources)) == known_entries()


def test_every_entry_says_by_what_rule_it_is_recognised() -> None:
    sections = re.split(r"^#+ (?=D-)", DIFFERENCES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ids = [section.split()[0] for section in sections[1:]]
    assert len(ids) == len(set(ids))
    assert [i for i, text in zip(ids, sections[1:], strict=True) if "Rule: " not in text] == []
