"""What carries decisions out: one base, and who only tells."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rorqual_policy import Target


@dataclass(frozen=True, slots=True)
class OwnInstances:
    """Instances of one service as the driver knows them."""

    pending: Mapping[str, float]
    """Started and not yet seen reporting: id to the time by which it should."""
    stopping: Collection[str]
    """Told to stop: no capacity any more, whatever they still report."""


class DriverError(Exception):
    """An orchestrator did not do what it was asked for."""

    def __init__(self, what: str, problem: str) -> None:
        self.what, self.problem = what, problem
        super().__init__(f"{what}: {problem}")


class Driver(ABC):
    """Follows decisions. None of its methods raises for what goes wrong outside: it is logged, and
    the next decision sees what is there."""

    name: str
    """As the published decisions say it."""

    async def start(self) -> None:
        """Learn what is there; called once, before the first decision."""
        return

    @abstractmethod
    def own(self, service: str, live_ids: Collection[str]) -> OwnInstances:
        """What is on its way up or down. live_ids: who reports and does not drain."""

    @abstractmethod
    def removable(self, service: str, live_ids: Collection[str]) -> Collection[str]:
        """Ids that `shrink` could take away."""

    @abstractmethod
    async def grow(self, service: str, target: Target) -> bool:
        """Begin to start target.num_change more; whether anything was begun."""

    @abstractmethod
    async def shrink(self, service: str, target: Target, instance_ids: Sequence[str]) -> bool:
        """Begin to drain and stop these, `-target.num_change` at most; whether anything was
        begun. Each has its grace to end or hand over its work."""

    def note_reporting(self, service: str, instance_id: str) -> None:
        """An instance has sent a load report."""
        return

    def stop_overdue(self) -> None:
        """Begin to stop instances that never reported in time."""
        return

    async def close(self, timeout_s: float) -> None:
        """Let go of everything that would not outlive this process."""
        return


class NoDriver(Driver):
    """A dry run: decisions are published and nothing else happens."""

    name = "none"

    def own(self, service: str, live_ids: Collection[str]) -> OwnInstances:
        return OwnInstances({}, ())

    def removable(self, service: str, live_ids: Collection[str]) -> Collection[str]:
        return ()

    async def grow(self, service: str, target: Target) -> bool:
        return False

    async def shrink(self, service: str, target: Target, instance_ids: Sequence[str]) -> bool:
        return False
