"""A process that grows is seen; one that was started in between is not taken for one."""

from __future__ import annotations

import pytest
from rorqual_cli.chaos.memory import Sample, growth_of, unmeasured


def _run(name: str, pid: int, sizes: dict[float, int]) -> list[Sample]:
    return [Sample(at_s, name, pid, num_bytes) for at_s, num_bytes in sizes.items()]


def test_growth_is_from_warm_to_the_end() -> None:
    steady = _run("steady", 1, {0: 10, 300: 100, 320: 102, 1780: 101, 1800: 101})
    leaky = _run("leaky", 2, {0: 10, 300: 100, 330: 100, 1770: 119, 1800: 121})
    growth = growth_of([*steady, *leaky], warm_s=300.0)
    ratios = {name: own.ratio for name, own in growth.items()}
    assert ratios == {"steady": pytest.approx(1.0), "leaky": pytest.approx(1.2)}
    assert [name for name, own in growth.items() if own.is_within] == ["steady"]


def test_a_process_that_was_not_there_all_the_time_is_left_out() -> None:
    killed = _run("a", 1, {0: 1, 300: 1, 900: 1})
    started_again = _run("a", 2, {910: 9, 1800: 9})
    other = _run("b", 3, {0: 5, 300: 5, 1800: 5})
    growth = growth_of([*killed, *started_again, *other], warm_s=300.0)
    assert {name: own.ratio for name, own in growth.items()} == {"b": 1.0}


def test_too_short_a_time_says_nothing() -> None:
    assert growth_of([], warm_s=300.0) == {}
    assert growth_of(_run("a", 1, {0: 1, 20: 2}), warm_s=300.0) == {}


def test_a_service_that_was_not_measured_is_named() -> None:
    steady = _run("decode-2", 1, {0: 10, 300: 100, 1800: 100})
    killed = [*_run("redis", 2, {0: 1, 900: 1}), *_run("redis", 3, {910: 1, 1800: 1})]
    gone = _run("scaler-1", 4, {0: 1, 600: 1})
    both = [*_run("router-1", 5, {0: 1, 600: 1}), *_run("router-2", 6, {0: 1, 600: 1})]
    samples = [*steady, *killed, *gone, *both]
    assert unmeasured(samples, growth_of(samples, warm_s=300.0)) == ["router", "scaler"]
