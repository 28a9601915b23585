"""One fleet of one instance each for the whole run; tests that kill things start their own.

With RORQUAL_URL the shared fleet is one that runs elsewhere, such as that of compose.yaml: what
only asks it runs, all else is skipped with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import openai
import pytest

from tests.support.fleet import RunningFleet, fleet, running_fleet
from tests.support.model import default_model_dir

__all__ = ["fleet"]

OUTSIDE_URL = os.environ.get("RORQUAL_URL", "")


class OutsideFleet:
    """A fleet that somebody else runs: it can be asked, but not looked into."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"RORQUAL_URL: {name!r} of a fleet that runs elsewhere can't be had")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start what they need say nothing about a fleet that runs elsewhere."""
    if not OUTSIDE_URL:
        return
    for item in items:
        if "shared_fleet" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="RORQUAL_URL: starts what it needs by itself"))


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The default model, prepared once a checkout."""
    return default_model_dir()


@pytest.fixture(scope="session")
def shared_fleet(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningFleet | OutsideFleet]:
    """1P1D with everything at its default. Leave it as you found it: idle."""
    if OUTSIDE_URL:
        yield OutsideFleet(OUTSIDE_URL)
        return
    with running_fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture
def client(shared_fleet: RunningFleet) -> Iterator[openai.OpenAI]:
    """The official client, unmodified, without retries that would hide errors."""
    with connect(shared_fleet) as connected:
        yield connected


def connect(running: RunningFleet, *, timeout_s: float = 60.0) -> openai.OpenAI:
    """An `openai` client of this fleet."""
    return openai.OpenAI(
        base_url=f"{running.base_url}/v1", api_key="unused", max_retries=0, timeout=timeout_s
    )
