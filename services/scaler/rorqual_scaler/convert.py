"""Wire messages to the scaler's own values and back: the only importer of generated code here."""

from dataclasses import dataclass

from google.protobuf.empty_pb2 import Empty
from rorqual_policy import InstanceReport, ScalingDecision, Target
from rorqual_policy.load_view import DecodeTimes
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_proto.v1.scaler_pb2 import (
    GetDecisionRequest,
    ScaleDecision,
    ServiceTarget,
    ShutdownRequest,
)

__all__ = ["Empty", "GetDecisionRequest", "LoadReport", "ScaleDecision", "ShutdownRequest"]


@dataclass(frozen=True, slots=True)
class RouterCounters:
    """What a router has seen since its start, and the queue as it sees it."""

    submitted_total: int
    missed_tokens_total: int
    queued_jobs: int


@dataclass(frozen=True, slots=True)
class VisionCounters:
    """What a vision instance was asked for since its start, and how quickly it sees."""

    asked_patches_total: int
    queued_patches: int
    patches_per_s: float


@dataclass(frozen=True, slots=True)
class RecipeCounters:
    """What a recipe instance has read and written since its start, and what that took."""

    tokens_total: int
    cpu_ms_total: int


@dataclass(frozen=True, slots=True)
class Reported:
    """One load report: what all say, and what only its service does."""

    instance: InstanceReport
    detail: RouterCounters | VisionCounters | RecipeCounters | None = None


def reported_from_wire(report: LoadReport) -> Reported:
    return Reported(_instance(report), _detail(report))


def _instance(report: LoadReport) -> InstanceReport:
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
        decode_times=_decode_times(report),
        queued_tokens=report.prefill.queued_tokens,
        tokens_per_s=report.prefill.capacity_tokens_per_s or report.prefill.tokens_per_s,
    )


def _decode_times(report: LoadReport) -> DecodeTimes | None:
    if not report.decode.HasField("step_times"):
        return None
    times = report.decode.step_times
    return DecodeTimes(times.base_s, times.per_request_s, times.per_kv_token_s)


def _detail(report: LoadReport) -> RouterCounters | VisionCounters | RecipeCounters | None:
    kind = report.WhichOneof("detail")
    if kind == "router":
        router = report.router
        return RouterCounters(
            router.submitted_requests_total, router.missed_prompt_tokens_total, router.queued_jobs
        )
    if kind == "vision":
        vision = report.vision
        return VisionCounters(
            vision.asked_patches_total, vision.queued_patches, vision.patches_per_s
        )
    if kind == "recipe":
        return RecipeCounters(report.recipe.tokens_total, report.recipe.cpu_ms_total)
    return None


def decision_to_wire(
    decision: ScalingDecision, *, driver: str, incarnation: int, seq: int, decided_unix_s: float
) -> ScaleDecision:
    return ScaleDecision(
        incarnation=incarnation,
        seq=seq,
        decided_unix_s=decided_unix_s,
        targets=[_target_to_wire(*named) for named in decision.targets.items()],
        driver=driver,
    )


def _target_to_wire(service: str, target: Target) -> ServiceTarget:
    return ServiceTarget(
        service=service,
        num_running=target.num_running,
        num_desired=target.num_desired,
        reason=target.reason,
        num_pending=target.num_pending,
        num_change=target.num_change,
    )
