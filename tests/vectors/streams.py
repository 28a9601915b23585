"""Stream cases: chunks in, answers out, compared with the reference's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vectors.outcome import Difference, Outcome, first_difference
from tests.vectors.stream_answers import StreamAnswers
from tests.vectors.stream_facts import StreamFacts
from tests.vectors.stream_forms import Form, form_of_body, form_of_stream
from tests.vectors.stream_rules import explain

Case = dict[str, Any]


class StreamChecks:
    """Compares stream cases that share a tokenizer."""

    def __init__(self, tokenizer: Path) -> None:
        self._answers = StreamAnswers(tokenizer)

    def close(self) -> None:
        """Lets go of the models."""
        self._answers.close()

    def check(self, case: Case) -> Outcome:
        """One case."""
        group = f"{case['proto']}/{case['group']}"
        return Outcome(case["id"], group, tuple(self._differences(case)))

    def _differences(self, case: Case) -> Iterator[Difference]:
        streamed, whole = self._answers.forms(case)
        yield from _unequal("stream and body", streamed, whole)
        expect = case["expect"]
        facts = StreamFacts.of(case, self._answers.model(case))
        theirs = reference_form(case["proto"], expect)
        yield from self._compare(facts, streamed, theirs)
        if expect["response"] and not expect["error"]:
            body = form_of_body(case["proto"], expect["response"])
            seen = {name for name in theirs if streamed[name] != theirs[name]}
            yield from self._compare(facts, whole, body, skip=seen)

    def _compare(
        self, facts: StreamFacts, ours: Form, theirs: Form, skip: set[str] = frozenset()
    ) -> Iterator[Difference]:
        for name, value in theirs.items():
            if name in skip or ours[name] == value:
                continue
            entry = explain(facts, name, ours, theirs)
            if isinstance(value, str) and isinstance(ours[name], str):
                yield Difference(name, *first_difference(ours[name], value), entry)
            else:
                yield Difference(name, ours[name], value, entry)


def reference_form(protocol: str, expect: dict[str, Any]) -> Form:
    """What the reference's stream adds up to."""
    events = [event for push in expect["pushes"] for event in push]
    return form_of_stream(protocol, [(event["event"], event["data"]) for event in events])


def _unequal(what: str, first: Form, second: Form) -> Iterator[Difference]:
    for name, value in first.items():
        if value != second[name]:
            yield Difference(f"{what}: {name}", value, second[name])
