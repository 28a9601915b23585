"""Subjects are unique, prefixed and never built from bad tokens."""

from __future__ import annotations

import inspect

import pytest
from rorqual_runtime import subjects


def test_all_subjects_differ_and_share_the_prefix() -> None:
    made = []
    for name, function in inspect.getmembers(subjects, inspect.isfunction):
        if name.startswith(("_", "is_")):
            continue
        made.append(function(*["abc", "def"][: len(inspect.signature(function).parameters)]))
    assert len(made) == len(set(made)) >= 20
    assert all(subject.startswith("rorqual.v1.") for subject in made)


@pytest.mark.parametrize("token", ["", "a.b", "a b", ">", "naïve"])
def test_a_subject_never_takes_a_bad_token(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        subjects.recipe_tokens(token)


def test_a_load_report_counts_for_its_sender_only() -> None:
    own = subjects.load("decode", "d-1")
    assert subjects.is_load_of(own, "decode", "d-1")
    for service, instance_id in (("router", "d-1"), ("decode", "d-2"), ("", ""), ("decode", "")):
        assert not subjects.is_load_of(own, service, instance_id)
