"""What instances said of their room, and how long ago."""

import pytest
from rorqual_policy.step_cost import StepCost
from rorqual_router.rooms import Room, Rooms

COST = StepCost(5e-3, 5e-4, 0.0, 0.0)


def room(running_s: float, seq: int = 1) -> Room:
    return Room("p", 1, seq, True, 1.0, 1.0, running_s, COST, (0, 1, 2, 3))


def test_a_step_under_way_is_counted_down_until_the_instance_speaks_again() -> None:
    rooms = Rooms()
    rooms.hear(room(0.3), now_s=10.0)
    left_s = [rooms.pullers(COST, now_s)[0].running_s for now_s in (10.0, 10.2, 11.0)]
    assert left_s == pytest.approx([0.3, 0.1, 0.0])
    rooms.hear(room(0.25, seq=2), now_s=11.0)
    assert rooms.pullers(COST, 11.0)[0].running_s == pytest.approx(0.25)
