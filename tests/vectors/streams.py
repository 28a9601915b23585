"""Stream cases: chunks in, answers out, compared with the reference's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vectors.outcome import Difference, Outcome, first_difference
from tests.vectors.stream_answers import StreamAnswers
from tests.vectors.stream_facts import StreamFacts
from tests.vectors.stream_forms import Form, Frame, form_of_body, form_of_stream
from tests.vectors.stream_rules import explain
from tests.vectors.stream_shapes import compare_bodies, compare_streams

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
        differences = tuple(self._differences(case))
        return Outcome(case["id"], group, differences or tuple(self._shape_differences(case)))

    def frames(self, case: Case) -> list[Frame]:
        """Events of our stream."""
        return self._answers.frames(case)

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

    def _shape_differences(self, case: Case) -> Iterator[Difference]:
        """Between answers that mean the same."""
        protocol, expect = case["proto"], case["expect"]
        theirs = reference_frames(expect)
        yield from compare_streams(protocol, self.frames(case), theirs)
        if expect["response"] and not expect["error"]:
            yield from compare_bodies(protocol, self._answers.body(case), expect["response"])

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


def reference_frames(expect: dict[str, Any]) -> list[Frame]:
    """Events of the reference's stream."""
    events = [event for push in expect["pushes"] for event in push]
    return [(event["event"], event["data"]) for event in events]


def reference_form(protocol: str, expect: dict[str, Any]) -> Form:
    """What the reference's stream adds up to."""
    return form_of_stream(protocol, reference_frames(expect))


def _unequal(what: str, first: Form, second: Form) -> Iterator[Difference]:
    for name, value in first.items():
        if value != second[name]:
            yield Difference(f"{what}: {name}", value, second[name])
