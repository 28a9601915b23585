"""Short prompts behind long ones: three instances, one of them three times as slow."""

import random

import pytest
from rorqual_policy.step_cost import StepCost

from tests.unit.policy.line_fleet import LineFleet

CORE = StepCost(5e-3, 5.5e-4, 1e-9, 1e-9)
"""A small model on one core."""
DEEP = StepCost(48e-3, 1e-4, 7e-7, 1e-6)
"""SmolLM2-135M on a core with matrix units: behind 4K tokens a block takes longer than a step."""
SHORT, LONG = (1, 512), (2048, 6144)
NUM_CLIENTS = 5
"""That send long prompts one after the other: more than there are instances, so some wait."""


def waits_of_short(gap_s, *, behind_long, seed, policy="rorqual", slowness=1.0, core=CORE):
    """Sorted seconds of 300 short prompts that come at random. slowness: of all three."""
    rng = random.Random(seed)

    def tokens(low, high):
        return round(low * (high / low) ** rng.random())

    arrivals, at_s = [], 2.0
    for number in range(300):
        at_s += rng.expovariate(1 / gap_s)
        arrivals.append((at_s, f"short{number}", tokens(*SHORT)))
    end_s, num_sent = at_s, [0]
    if behind_long:
        arrivals += [(0.0, f"long{client}", tokens(*LONG)) for client in range(NUM_CLIENTS)]

    def after(name):
        num_sent[0] += name.startswith("long")
        is_over = num_sent[0] > end_s  # about one long prompt a second is what three can do
        return tokens(*LONG) if name.startswith("long") and not is_over else None

    costs = [StepCost(*(times * slowness * value for value in core)) for times in (1, 1, 3)]
    fleet = LineFleet(costs, policy)
    found = fleet.run(arrivals, after)
    return sorted(wait_s for name, wait_s in found.items() if name.startswith("short"))


@pytest.mark.parametrize(
    ("core", "slowness", "seed"), [(CORE, 1.0, 1), (CORE, 2.0, 2), (DEEP, 1.0, 4)]
)
def test_short_prompts_behind_long_ones_take_at_most_three_times_as_long_as_alone(
    core, slowness, seed
):
    alone = waits_of_short(20.0, behind_long=False, seed=seed, slowness=slowness, core=core)
    gap_s = 0.5 * slowness
    behind = waits_of_short(gap_s, behind_long=True, seed=seed, slowness=slowness, core=core)
    assert len(alone) == len(behind) == 300
    assert behind[-4] <= 3.0 * alone[-4]


def test_as_published_they_wait_for_long_ones_to_end():
    alone = waits_of_short(20.0, behind_long=False, seed=1)
    behind = waits_of_short(0.5, behind_long=True, seed=1, policy="deepseek")
    assert behind[-4] > 9.0 * alone[-4]
