"""Faults come from a seed, and no word that names none is passed over."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_cli.chaos.plan import INSTANCES, TABLE, Kind, choose_faults, plan_strikes


@settings(deadline=None)
@given(st.integers(0, 1 << 30), st.floats(0, 600), st.floats(0.5, 60))
def test_a_seed_always_plans_the_same_strikes_within_the_time(
    seed: int, seconds: float, every_s: float
) -> None:
    strikes = plan_strikes(seed, seconds, TABLE, every_s=every_s)
    assert strikes == plan_strikes(seed, seconds, TABLE, every_s=every_s)
    assert all(every_s <= strike.at_s <= seconds for strike in strikes)
    targets = [strike.fault.target for strike in strikes]
    assert all(a != b for a, b in pairwise(targets))


def test_the_only_fault_comes_again_and_again() -> None:
    only = choose_faults(["decode-1: kill -9"])
    assert [s.fault for s in plan_strikes(0, 40.0, only, every_s=10.0)] == only * 3


def test_no_faults_and_no_interval_are_refused() -> None:
    with pytest.raises(ValueError, match="got 0 and 1"):
        plan_strikes(0, 10.0, [], every_s=1.0)
    with pytest.raises(ValueError, match=r"and 0\.0"):
        plan_strikes(0, 10.0, TABLE, every_s=0.0)


def test_every_service_is_killed_and_every_target_exists() -> None:
    killed = {fault.target.partition("-")[0] for fault in TABLE if fault.kind is Kind.KILL}
    assert killed == {*INSTANCES, "scaler", "nats", "redis"}
    names = {f"{service}-{n}" for service in INSTANCES for n in (1, 2)}
    assert {fault.target for fault in TABLE} <= names | {"scaler-1", "nats", "redis", "all"}


def test_words_choose_and_a_wrong_one_is_named() -> None:
    assert {fault.target for fault in choose_faults(["redis"])} == {"redis"}
    assert choose_faults([]) == list(TABLE)
    with pytest.raises(ValueError, match="'nonsense'"):
        choose_faults(["redis", "nonsense"])
