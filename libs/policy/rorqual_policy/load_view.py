"""What is known of the fleet: the newest report of every instance that still speaks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class DecodeTimes(NamedTuple):
    """What a decode step takes there, as `PlacementParams` has it."""

    base_s: float
    per_request_s: float
    per_kv_token_s: float


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """One load report. Counters that a service does not have stay 0."""

    service: str
    instance_id: str
    incarnation: int
    seq: int
    draining: bool = False
    num_active_requests: int = 0
    num_used_pages: int = 0
    num_total_pages: int = 0
    num_running: int = 0
    max_running: int = 0
    kv_tokens: int = 0
    decode_times: DecodeTimes | None = None
    """None = not measured."""
    queued_tokens: int = 0
    tokens_per_s: float = 0.0
    num_replayed_tokens: int = 0
    """Most of a stored prefix that this instance may have to run again."""
    queued_patches: int = 0
    step_patches: int = 0
    model_fingerprint: str = ""
    max_context_tokens: int = 0


class HeardReport(NamedTuple):
    """A report and when it came."""

    report: InstanceReport
    heard_s: float


class LoadView:
    """Owned by one event loop. Times are of one monotonic clock.

    A report that is late but not silent_s old counts with its last figures: stale is not full.
    """

    def __init__(self, silent_s: float = 2.0) -> None:
        """silent_s: an instance that said nothing for longer is not alive.

        Raises: ValueError unless silent_s > 0.
        """
        if silent_s <= 0:
            raise ValueError(f"need silent_s > 0, got {silent_s}")
        self.silent_s = silent_s
        self._services: dict[str, dict[str, HeardReport]] = {}

    def observe(self, report: InstanceReport, now_s: float) -> bool:
        """Take in a report; False, and nothing changes, when a newer one is known."""
        instances = self._services.setdefault(report.service, {})
        known = instances.get(report.instance_id)
        if known is not None:
            before = known.report
            if (report.incarnation, report.seq) <= (before.incarnation, before.seq):
                return False
        instances[report.instance_id] = HeardReport(report, now_s)
        return True

    def drop_silent(self, now_s: float) -> list[InstanceReport]:
        """Forget instances that have been silent for too long; the last reports of them."""
        oldest_s = now_s - self.silent_s
        gone: list[InstanceReport] = []
        for instances in self._services.values():
            silent = [known.report for known in instances.values() if known.heard_s < oldest_s]
            for report in silent:
                del instances[report.instance_id]
            gone += silent
        return gone

    def live(self, service: str, now_s: float) -> Iterator[InstanceReport]:
        """Reports of instances of a service that are alive and not draining, in no order."""
        oldest_s = now_s - self.silent_s
        for report, heard_s in self._services.get(service, {}).values():
            if heard_s >= oldest_s and not report.draining:
                yield report

    def is_silent(self, service: str, instance_id: str, now_s: float) -> bool:
        """Whether an instance is not alive; one that drains is."""
        known = self._services.get(service, {}).get(instance_id)
        return known is None or known.heard_s < now_s - self.silent_s
