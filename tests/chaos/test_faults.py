"""The faults that meet most of a fleet, each in the midst of load: nothing is lost, wrong or left
behind. Then, of the same fleet, a short soak, and clients that leave.

All faults, and how long streams stall: `make faults`; at random: `make chaos`; at length:
`make soak`, `make cancels`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from rorqual_cli.chaos.arena import Arena, open_arena
from rorqual_cli.chaos.cancels import cancel_many
from rorqual_cli.chaos.memory import growth_of
from rorqual_cli.chaos.plan import choose_faults, plan_strikes
from rorqual_cli.chaos.trials import one_fault, random_faults

from tests.support.fleet import SilentReporter
from tests.support.model import random_v41_dir

CLIENTS = 8
MOST_GROWTH = 1.25
"""Of a process that is not warm yet; at length it is 1.03."""
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


@pytest.mark.asyncio(loop_scope="module")
async def test_a_short_soak_loses_nothing_and_no_process_grows_much(arena: Arena) -> None:
    strikes = plan_strikes(1, 24.0, choose_faults(["router-2", "prefill-2"]), every_s=8.0)
    storm = await random_faults(
        arena, strikes, seconds=24.0, num_clients=CLIENTS, report=LoudReporter()
    )
    assert storm.num_faults > 0
    assert (storm.verdict.lost, storm.verdict.wrong, storm.verdict.leaked) == (0, 0, 0)
    growth = growth_of(storm.samples, warm_s=8.0)
    assert {"router-2", "prefill-2", "decode-2", "recipe-1"} <= growth.keys()
    grown = {name: str(own) for name, own in growth.items() if own.ratio > MOST_GROWTH}
    assert not grown


@pytest.mark.asyncio(loop_scope="module")
async def test_clients_that_leave_while_decode_drains_leave_nothing_behind(arena: Arena) -> None:
    left = await cancel_many(arena, 80, num_clients=CLIENTS, seed=1, report=LoudReporter())
    assert left.held == {}
    assert left.completed < left.requests
    assert all(left.by_phase[phase] for phase in ("prefill", "decode"))
