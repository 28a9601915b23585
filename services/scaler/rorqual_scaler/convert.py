"""Wire messages to the scaler's own values and back: the only importer of generated code here."""

from dataclasses import dataclass

from google.protobuf.empty_pb2 import Empty
from rorqual_policy import InstanceReport, ScalingDecision, Target
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_proto.v1.scaler_pb2 import GetDecisionRequest, ScaleDecision, ServiceTarget

__all__ = ["Empty", "GetDecisionRequest", "LoadReport", "RouterCounters", "ScaleDecision"]


@dataclass(frozen=True, slots=True)
class RouterCounters:
    """What a router has seen since its start, and the queue as it sees it."""

    submitted_total: int
    missed_tokens_total: int
    queued_jobs: int


def report_from_wire(report: LoadReport) -> InstanceReport:
    return InstanceReport(
        service=report.service,
        instance_id=report.instance_id,
        incarnation=report.incarnation,
        seq=report.seq,
        draining=report.draining,
        num_active_requests=report.num_active_requests,
        num_used_pages=report.num_used_pages,
        num_total_pages=report.num_total_pages,
        num_running=report.decode.num_running,
        max_running=report.decode.max_running,
        kv_tokens=report.decode.kv_tokens,
        queued_tokens=report.prefill.queued_tokens,
        tokens_per_s=report.prefill.tokens_per_s,
    )


def router_counters_from_wire(report: LoadReport) -> RouterCounters | None:
    """None for a report of any other service."""
    if report.WhichOneof("detail") != "router":
        return None
    return RouterCounters(
        report.router.submitted_requests_total,
        report.router.missed_prompt_tokens_total,
        report.router.queued_jobs,
    )


def decision_to_wire(
    decision: ScalingDecision, *, incarnation: int, seq: int, decided_unix_s: float
) -> ScaleDecision:
    return ScaleDecision(
        incarnation=incarnation,
        seq=seq,
        decided_unix_s=decided_unix_s,
        targets=[
            _target_to_wire("prefill", decision.prefill),
            _target_to_wire("decode", decision.decode),
        ],
    )


def _target_to_wire(service: str, target: Target) -> ServiceTarget:
    return ServiceTarget(
        service=service,
        num_running=target.num_running,
        num_desired=target.num_desired,
        reason=target.reason,
    )
