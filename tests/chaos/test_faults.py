"""The faults that meet most of a fleet, each in the midst of load: nothing is lost, wrong or left
behind.

All faults, and how long streams stall: `make faults`; at random: `make chaos`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from rorqual_cli.chaos.arena import Arena, open_arena
from rorqual_cli.chaos.plan import choose_faults
from rorqual_cli.chaos.trials import one_fault

from tests.support.fleet import SilentReporter
from tests.support.model import random_v41_dir

CLIENTS = 8
INSTANCES = dict.fromkeys(("router", "prefill", "decode"), 2)
FAULTS = choose_faults(
    ["decode-1: kill", "prefill-1: kill", "router-2: half-open connection to NATS", "nats: kill"]
)


class LoudReporter(SilentReporter):
    """What went wrong with a request is shown when a test fails."""

    def say(self, text: str) -> None:
        print(text)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def arena(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Arena]:
    """One fleet for all of them: each leaves it whole."""
    home = tmp_path_factory.mktemp("home")
    async with open_arena(
        str(random_v41_dir()),
        home,
        LoudReporter(),
        seed=1,
        at_once=CLIENTS,
        instances=INSTANCES,
        num_questions=16,
    ) as arena:
        yield arena


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_a_fault_under_load_costs_no_answer(arena: Arena, fault) -> None:
    row = await one_fault(arena, fault, num_clients=CLIENTS, report=LoudReporter())
    verdict = row.verdict
    assert verdict.requests >= CLIENTS
    assert (verdict.lost, verdict.wrong, verdict.leaked) == (0, 0, 0)
