"""Every subject has somebody who may send to it and somebody who may receive from it."""

from __future__ import annotations

import inspect

import pytest
from rorqual_runtime import subjects
from rorqual_runtime.identities.bus_rights import BUS_RIGHTS, receive_subjects, send_subjects

from tests.contract.distributions import SERVICES
from tests.support.bus import matches

STORED = {"prefill_jobs", "dead_letters"}
"""Streams receive these; who reads a stream asks JetStream."""
WILDCARDS = {"all_loads", "loads_of"}


def subject_functions() -> list[str]:
    return [
        name
        for name, function in inspect.getmembers(subjects, inspect.isfunction)
        if not name.startswith(("_", "is_")) and name not in WILDCARDS
    ]


def example(name: str) -> str:
    """The function's subject for decode where it wants a service, else for anything."""
    function = getattr(subjects, name)
    wanted = inspect.signature(function).parameters
    return str(function(*("decode" if parameter == "service" else "one" for parameter in wanted)))


@pytest.mark.parametrize("name", subject_functions())
def test_a_subject_is_in_the_table_of_rights(name: str) -> None:
    subject = example(name)
    senders = [i for i in BUS_RIGHTS if any(matches(p, subject) for p in send_subjects(i))]
    readers = [i for i in BUS_RIGHTS if any(matches(p, subject) for p in receive_subjects(i))]
    assert senders, f"nobody may send to {subject}: see identities/bus_rights.py"
    assert readers or name in STORED, f"nobody may receive {subject}: see identities/bus_rights.py"


def test_there_is_an_identity_for_each_service_and_each_kind_of_tool() -> None:
    assert set(BUS_RIGHTS) == {*SERVICES, "cli", "recorder"}
