"""What carries decisions out."""

from typing import Protocol

from rorqual_scaler.observer import OwnInstances


class Driver(Protocol):
    """Starts and stops instances; touches none that it did not start."""

    def own(self, service: str) -> OwnInstances:
        """What it started of a service and still has."""
        ...

    async def start(self, service: str) -> str | None:
        """Start one more instance; its id, or None when it can't just now."""
        ...

    def stop_one(self, service: str) -> str | None:
        """Begin to drain and stop the newest instance of its own; None when it has none."""
        ...

    def note_reporting(self, service: str, instance_id: str) -> None:
        """An instance has sent its first load report."""
        ...

    def stop_overdue(self) -> None:
        """Begin to stop instances that never reported in time."""
        ...

    async def close(self, timeout_s: float) -> None:
        """Stop everything it started; nothing of it runs when this returns."""
        ...


class NoDriver:
    """Decisions are published and nothing else happens: somebody else carries them out."""

    def own(self, service: str) -> OwnInstances:
        return OwnInstances({}, ())

    async def start(self, service: str) -> str | None:
        return None

    def stop_one(self, service: str) -> str | None:
        return None

    def note_reporting(self, service: str, instance_id: str) -> None:
        return None

    def stop_overdue(self) -> None:
        return None

    async def close(self, timeout_s: float) -> None:
        return None
