"""What every prefill instance could take on, as it last said."""

from collections.abc import Iterable
from dataclasses import dataclass

from rorqual_policy.prefill_line import Puller
from rorqual_policy.step_cost import STUDY_COST, StepCost, relative_speed

ROOM_TTL_S = 3.0
"""Instances say it once a second: who is silent for longer is given nothing."""


@dataclass(frozen=True, slots=True)
class Room:
    """One instance's word. Work in its own seconds."""

    instance_id: str
    incarnation: int
    seq: int
    is_open: bool
    pending_s: float
    longest_s: float
    running_s: float
    """Until the step under way should be done, when this was said."""
    cost: StepCost
    served: tuple[int, ...]
    """Numbers of its length buckets."""


class Rooms:
    """The newest word of every instance; one that is being given a job has to speak first."""

    def __init__(self) -> None:
        self._rooms: dict[str, tuple[Room, float]] = {}
        self._asked: set[str] = set()

    def hear(self, room: Room, now_s: float) -> None:
        """Take in what an instance says; older words than known are ignored."""
        known = self._rooms.get(room.instance_id)
        if known is None or (known[0].incarnation, known[0].seq) < (room.incarnation, room.seq):
            self._rooms[room.instance_id] = room, now_s

    def ask(self, instance_id: str) -> None:
        """It is being given a job: what it said before no longer counts."""
        self._asked.add(instance_id)

    def answered(self, instance_id: str, *, knows_room: bool) -> None:
        """The job is given or refused; without a fresh word it counts as closed until it speaks."""
        self._asked.discard(instance_id)
        if not knows_room:
            self._rooms.pop(instance_id, None)

    def forget_silent(self, now_s: float) -> None:
        """Drop who said nothing for ROOM_TTL_S."""
        kept = {i: known for i, known in self._rooms.items() if now_s - known[1] <= ROOM_TTL_S}
        self._rooms = kept

    @property
    def instance_ids(self) -> Iterable[str]:
        """Who spoke lately."""
        return self._rooms.keys()

    def mean_cost(self) -> StepCost:
        """Of a rank of mean speed; the study's while nobody has said anything."""
        costs = [room.cost for room, _ in self._rooms.values()]
        if not costs:
            return STUDY_COST
        return StepCost(*(sum(values) / len(costs) for values in zip(*costs, strict=True)))

    def pullers(self, cost: StepCost, now_s: float) -> list[Puller]:
        """Who could take on something now; cost: the mean one, to tell speeds by."""
        return [
            Puller(
                room.instance_id,
                pending_s=room.pending_s,
                longest_s=room.longest_s,
                running_s=max(0.0, room.running_s - (now_s - heard_s)),
                speed=relative_speed(room.cost, cost),
                a0_s=room.cost.a0_s,
                served=room.served,
            )
            for instance_id, (room, heard_s) in sorted(self._rooms.items())
            if room.is_open and instance_id not in self._asked
        ]
