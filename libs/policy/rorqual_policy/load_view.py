"""What is known of the fleet: last report of every instance, plus what was sent there since."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rorqual_policy.placement import DecodeInstance


class InstanceKey(NamedTuple):
    """Identity of an instance across restarts."""

    service: str
    instance_id: str


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

    @property
    def key(self) -> InstanceKey:
        return InstanceKey(self.service, self.instance_id)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A placement that no report has counted yet."""

    request_id: str
    num_tokens: int
    num_pages: int
    placed_s: float


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One instance: its newest report and the placements on top of it, oldest first."""

    report: InstanceReport
    received_s: float
    in_flight: tuple[InFlight, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadViewParams:
    """When an instance is gone, and for how long a placement is counted on top of its reports."""

    silent_s: float = 2.0
    """An instance that said nothing for so long is not alive."""
    settle_s: float = 1.0
    """Handover takes no longer than this: afterwards the reports are right by themselves."""

    def __post_init__(self) -> None:
        if self.silent_s <= 0 or self.settle_s < 0:
            raise ValueError(f"need silent_s > 0, settle_s >= 0; got {self}")


@dataclass(frozen=True, slots=True)
class LoadView:
    """Immutable; the functions below return the next one. Times are of one monotonic clock.

    A report that is late but not silent_s old counts with its last figures: stale is not full.
    """

    params: LoadViewParams = field(default_factory=LoadViewParams)
    instances: Mapping[InstanceKey, InstanceView] = field(default_factory=dict)


def observe_report(view: LoadView, report: InstanceReport, now_s: float) -> LoadView:
    """Take in a report. Older ones than known are ignored; a new incarnation starts afresh."""
    known = view.instances.get(report.key)
    if known is None or report.incarnation > known.report.incarnation:
        return _with(view, InstanceView(report, now_s))
    if report.incarnation < known.report.incarnation or report.seq <= known.report.seq:
        return view
    num_arrived = max(0, report.num_running - known.report.num_running)
    unsettled = _unsettled(known.in_flight[num_arrived:], view.params, now_s)
    return _with(view, InstanceView(report, now_s, unsettled))


def note_placement(view: LoadView, key: InstanceKey, placed: InFlight) -> LoadView:
    """Count a request on its instance at once; nothing if the instance is gone."""
    known = view.instances.get(key)
    if known is None:
        return view
    return _with(view, replace(known, in_flight=(*known.in_flight, placed)))


def forget_placement(view: LoadView, service: str, request_id: str) -> LoadView:
    """The request was refused, cancelled or placed elsewhere: it no longer counts anywhere."""
    for key, known in view.instances.items():
        kept = tuple(p for p in known.in_flight if p.request_id != request_id)
        if key.service == service and len(kept) != len(known.in_flight):
            view = _with(view, replace(known, in_flight=kept))
    return view


def drop_silent(view: LoadView, now_s: float) -> LoadView:
    """Without the instances that have been silent for too long; the same object if none was."""
    oldest_s = now_s - view.params.silent_s
    kept = {k: known for k, known in view.instances.items() if known.received_s >= oldest_s}
    return view if len(kept) == len(view.instances) else replace(view, instances=kept)


def live_instances(view: LoadView, service: str, now_s: float) -> Iterator[InstanceView]:
    """Instances of a service that report and are not draining, in the order of their ids."""
    oldest_s = now_s - view.params.silent_s
    for key in sorted(key for key in view.instances if key.service == service):
        known = view.instances[key]
        if known.received_s >= oldest_s and not known.report.draining:
            yield known


def num_live(view: LoadView, service: str, now_s: float) -> int:
    """How many instances `live_instances` yields."""
    return sum(1 for _ in live_instances(view, service, now_s))


def decode_snapshot(view: LoadView, now_s: float) -> list[DecodeInstance]:
    """Live decode instances as `choose_decode` wants them, placements in flight included."""
    decodes = live_instances(view, "decode", now_s)
    return [decode_load(known, view.params, now_s) for known in decodes]


def decode_load(known: InstanceView, params: LoadViewParams, now_s: float) -> DecodeInstance:
    """A decode instance's load: its newest report, and the placements that it does not show yet."""
    report = known.report
    extra = _unsettled(known.in_flight, params, now_s)
    extra_pages = sum(placed.num_pages for placed in extra)
    return DecodeInstance(
        instance_id=report.instance_id,
        num_running=report.num_running + len(extra),
        max_running=report.max_running,
        kv_tokens=report.kv_tokens + sum(placed.num_tokens for placed in extra),
        num_free_pages=max(0, report.num_total_pages - report.num_used_pages - extra_pages),
        num_total_pages=report.num_total_pages,
    )


def _unsettled(
    in_flight: tuple[InFlight, ...], params: LoadViewParams, now_s: float
) -> tuple[InFlight, ...]:
    if not in_flight:
        return in_flight
    return tuple(p for p in in_flight if now_s - p.placed_s <= params.settle_s)


def _with(view: LoadView, changed: InstanceView) -> LoadView:
    return replace(view, instances={**view.instances, changed.report.key: changed})
