"""One fleet of one instance each for the whole run; tests that kill things start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.fleet import RunningFleet, fleet, running_fleet
from tests.support.model import default_model_dir

__all__ = ["fleet"]


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The default model, prepared once a checkout."""
    return default_model_dir()


@pytest.fixture(scope="session")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    """1P1D with everything at its default. Leave it as you found it: idle."""
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
