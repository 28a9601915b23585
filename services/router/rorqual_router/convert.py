"""Wire messages to the router's own values and back: the only importer of generated code here."""

import math
from dataclasses import dataclass
from typing import Any

from rorqual_policy import ImageSpan, InstanceReport, PlacementDecision, PlacementRequest
from rorqual_policy.buckets import Bucket, bucket_number
from rorqual_policy.load_view import DecodeTimes
from rorqual_policy.prefill_line import WaitingPrompt
from rorqual_policy.step_cost import StepCost, checked_cost
from rorqual_proto.v1.decode_pb2 import FINISH_REASON_ERROR, TokenBatch, TokenDelta
from rorqual_proto.v1.generation_pb2 import Generation, PromptImage
from rorqual_proto.v1.grammar_pb2 import CompileReply, CompileRequest
from rorqual_proto.v1.kvmeta_pb2 import MatchReply, MatchRequest, ReleaseLeaseRequest
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_proto.v1.prefill_pb2 import (
    PrefillAssignment,
    PrefillAssignmentReply,
    PrefillJob,
    PrefillRoom,
    UntriedJob,
)
from rorqual_proto.v1.router_pb2 import (
    CancelRequest,
    Placement,
    PlaceReply,
    PlaceRequest,
    SubmitReply,
    SubmitRequest,
    Submitted,
)
from rorqual_proto.v1.tensor_pb2 import Payload, TensorTicket
from rorqual_proto.v1.vision_pb2 import VisionEncodeReply, VisionEncodeRequest
from rorqual_runtime.errors import (
    Internal,
    InvalidRequest,
    ServingError,
    Unsupported,
    error_to_wire,
)
from rorqual_runtime.leases import LeaseHandle

from rorqual_router.rooms import Room

__all__ = [
    "CancelRequest",
    "CompileReply",
    "CompileRequest",
    "Generation",
    "JobParts",
    "LoadReport",
    "MatchReply",
    "MatchRequest",
    "Payload",
    "PlaceReply",
    "PlaceRequest",
    "PrefillAssignmentReply",
    "PrefillJob",
    "PrefillRoom",
    "PrefixMatch",
    "PromptImage",
    "ReleaseLeaseRequest",
    "Submission",
    "SubmitReply",
    "SubmitRequest",
    "TensorTicket",
    "VisionEncodeReply",
]


RESTART_PRIORITY = 20
"""Levels for a prompt whose client is in the middle of its answer."""


@dataclass(frozen=True, slots=True)
class Submission:
    """All choices of one request. They share prompt, namespace and deadline."""

    request_id: str
    generations: tuple[Generation, ...]
    prompt: Payload
    num_prompt_tokens: int
    cache_namespace: str
    deadline_unix_s: float
    """Infinity when the request named none."""
    has_constraint: bool
    images: tuple[PromptImage, ...] = ()
    """Of the common prompt, in order of their places."""
    is_restart: bool = False
    """It was admitted before, and lost where it ran."""

    @property
    def image_spans(self) -> list[ImageSpan]:
        """The images as block keys have them."""
        return [ImageSpan(i.first_token, i.num_tokens, i.digest) for i in self.images]


@dataclass(frozen=True, slots=True)
class PromptKeys:
    """What a prompt's blocks go by."""

    fingerprint: str
    blocks: list[bytes]
    content: bytes
    """Of the first block in no namespace; empty where there is none."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the prefix store is said to hold of a prompt."""

    num_blocks: int = 0
    lease_id: str = ""
    miss_reason: str = ""
    num_exact_blocks: int = 0
    """Of these, before the first one behind a replay."""
    windows: tuple[Any, ...] = ()
    """Who keeps window states behind matched blocks: wire values, passed on unread."""


@dataclass(frozen=True, slots=True)
class JobParts:
    """What the router adds to a generation on its way to prefill."""

    match: PrefixMatch
    submitted_unix_s: float
    num_missed_tokens: int
    """Estimate of what has to be computed."""
    exact_only: bool = False
    image_embeddings: tuple[TensorTicket, ...] = ()
    """One an image; an empty ticket where the match covers it."""


def submission_from_wire(request: SubmitRequest) -> Submission:
    """Raises: InvalidRequest, Unsupported, naming the field that can't be right."""
    generations = tuple(request.generations)
    if not generations:
        raise InvalidRequest("a submission needs at least one generation", "generations")
    first = generations[0]
    for index, generation in enumerate(generations):
        _check_generation(generation, first, f"generations[{index}]")
    if len({generation.choice_index for generation in generations}) != len(generations):
        raise InvalidRequest("choice indices must differ", "generations")
    deadlines = [g.deadline_unix_s for g in generations if g.deadline_unix_s > 0]
    return Submission(
        request_id=first.request_id,
        generations=generations,
        prompt=first.prompt,
        num_prompt_tokens=first.num_prompt_tokens,
        cache_namespace=first.cache_namespace,
        deadline_unix_s=min(deadlines, default=math.inf),
        has_constraint=any(generation.HasField("constraint") for generation in generations),
        images=_checked_images(first),
        is_restart=all(generation.run for generation in generations),
    )


def _checked_images(generation: Generation) -> tuple[PromptImage, ...]:
    """Raises: InvalidRequest when images overlap or reach past the prompt."""
    at = 0
    for index, image in enumerate(generation.images):
        path = f"generations[0].images[{index}]"
        if image.first_token < at or not image.num_tokens or not image.digest:
            raise InvalidRequest("needs its own place, tokens and a digest", path)
        at = image.first_token + image.num_tokens
        if at > generation.num_prompt_tokens:
            raise InvalidRequest("reaches past the prompt", path)
    return tuple(generation.images)


def _check_generation(generation: Generation, first: Generation, path: str) -> None:
    if not generation.request_id or generation.request_id != first.request_id:
        raise InvalidRequest("choices need one common request id", f"{path}.request_id")
    if generation.num_prompt_tokens < 1:
        raise InvalidRequest("the prompt is empty", f"{path}.num_prompt_tokens")
    if generation.num_prompt_tokens != first.num_prompt_tokens:
        raise InvalidRequest("choices need one common prompt", f"{path}.num_prompt_tokens")
    if generation.cache_namespace != first.cache_namespace:
        raise InvalidRequest("choices need one cache namespace", f"{path}.cache_namespace")
    if generation.adapter:
        raise Unsupported("adapters are not served yet", f"{path}.adapter")
    if len(generation.images) != len(first.images):
        raise InvalidRequest("choices need common images", f"{path}.images")
    if generation.prompt.WhichOneof("body") is None:
        raise InvalidRequest("the prompt is missing", f"{path}.prompt")
    if generation.sampling.max_new_tokens < 1:
        raise InvalidRequest("must be at least 1", f"{path}.sampling.max_new_tokens")


def compile_request_to_wire(generation: Generation) -> CompileRequest:
    return CompileRequest(
        request_id=generation.request_id,
        model=generation.model,
        constraint=generation.constraint,
    )


def match_request_to_wire(
    request_id: str, lease_id: str, keys: PromptKeys, *, exact_only: bool
) -> MatchRequest:
    return MatchRequest(
        request_id=request_id,
        lease_id=lease_id,
        model_fingerprint=keys.fingerprint,
        packed_block_keys=b"".join(keys.blocks),
        content_key=keys.content,
        exact_only=exact_only,
    )


def match_from_wire(reply: MatchReply, num_keys: int) -> PrefixMatch:
    """A match of more blocks than were asked for counts as all of them."""
    match = reply.match
    return PrefixMatch(
        min(match.num_matched_blocks, num_keys),
        match.lease_id,
        match.miss_reason,
        min(match.num_exact_blocks, num_keys),
        tuple(match.windows),
    )


def job_to_wire(
    generation: Generation, parts: JobParts, compiled_grammar: TensorTicket | None
) -> PrefillJob:
    return PrefillJob(
        generation=generation,
        num_matched_blocks=parts.match.num_blocks,
        num_exact_blocks=parts.match.num_exact_blocks,
        exact_only=parts.exact_only,
        kv_lease_id=parts.match.lease_id,
        compiled_grammar=compiled_grammar,
        submitted_unix_s=parts.submitted_unix_s,
        num_missed_tokens=parts.num_missed_tokens,
        image_embeddings=parts.image_embeddings,
        windows=parts.match.windows,
        miss_reason=parts.match.miss_reason,
    )


def job_id(generation: Generation | UntriedJob) -> str:
    """One a run of a generation."""
    return f"{generation.request_id}/{generation.choice_index}/{generation.run}"


def encode_request_to_wire(request_id: str, model: str, image: PromptImage) -> VisionEncodeRequest:
    return VisionEncodeRequest(
        request_id=request_id, model=model, image_digest=image.digest, pixels=image.pixels
    )


def embeddings_from_wire(reply: VisionEncodeReply, image: PromptImage) -> TensorTicket:
    """Raises: Internal when the answer is about something else."""
    encoded = reply.encoded
    if encoded.image_digest != image.digest or encoded.num_tokens != image.num_tokens:
        raise Internal("vision answered with another image")
    return encoded.embeddings


def submitted_to_wire(bucket: str, num_cached_tokens: int) -> SubmitReply:
    return SubmitReply(submitted=Submitted(bucket=bucket, num_cached_tokens=num_cached_tokens))


def placement_request_from_wire(request: PlaceRequest) -> PlacementRequest:
    """Raises: InvalidRequest without a request id or context."""
    if not request.request_id:
        raise InvalidRequest("a placement needs a request id", "request_id")
    if request.num_context_tokens < 1:
        raise InvalidRequest("a placement needs a context", "num_context_tokens")
    return PlacementRequest(
        request_id=f"{request.request_id}/{request.choice_index}",
        num_context_tokens=request.num_context_tokens,
        max_new_tokens=request.max_new_tokens,
        excluded_ids=frozenset(request.excluded_ids),
    )


def placement_to_wire(decision: PlacementDecision) -> PlaceReply:
    return PlaceReply(
        placement=Placement(decode_id=decision.instance_id or "", reason=decision.reason)
    )


def _decode_times(report: LoadReport) -> DecodeTimes | None:
    """None where they are not said, or can't be."""
    if not report.decode.HasField("step_times"):
        return None
    times = report.decode.step_times
    found = DecodeTimes(times.base_s, times.per_request_s, times.per_kv_token_s)
    is_sound = all(0 <= value < math.inf for value in found) and found.per_request_s > 0
    return found if is_sound else None


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
        decode_times=_decode_times(report),
        queued_tokens=report.prefill.queued_tokens,
        tokens_per_s=report.prefill.tokens_per_s,
        num_replayed_tokens=report.prefill.num_replayed_tokens,
        queued_patches=report.vision.queued_patches,
        step_patches=report.vision.step_patches,
        model_fingerprint=report.model_fingerprint,
        max_context_tokens=report.max_context_tokens,
    )


def room_from_wire(message: PrefillRoom) -> Room:
    """Raises: InvalidRequest when the cost can't be one, or a bucket is not known."""
    cost = message.cost
    try:
        checked = checked_cost(StepCost(cost.a0_s, cost.a1_s, cost.a2_s, cost.a3_s))
        served = tuple(bucket_number(Bucket(name)) for name in message.buckets)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    return Room(
        instance_id=message.instance_id,
        incarnation=message.incarnation,
        seq=message.seq,
        is_open=message.open,
        pending_s=message.pending_s,
        longest_s=message.longest_s,
        running_s=message.running_s,
        cost=checked,
        served=served,
    )


def waiting_from_wire(job: PrefillJob, bucket: int, work_s: float) -> WaitingPrompt:
    """The job as the waiting line sees it, on the wall clock."""
    generation = job.generation
    return WaitingPrompt(
        job_id=job_id(generation),
        tenant=generation.tenant,
        bucket=bucket,
        arrival_s=job.submitted_unix_s,
        work_s=work_s,
        deadline_s=generation.deadline_unix_s or math.inf,
        priority=generation.priority + (RESTART_PRIORITY if generation.run else 0),
    )


def assignment_to_wire(handle: LeaseHandle, take_by_unix_s: float) -> PrefillAssignment:
    return PrefillAssignment(
        subject=handle.subject,
        lease_subject=handle.lease_subject,
        headers=handle.headers,
        job=handle.data,
        take_by_unix_s=take_by_unix_s,
        num_begun=handle.num_begun,
    )


def failure_to_wire(
    job: PrefillJob, error: ServingError, sender_id: str, incarnation: int
) -> TokenBatch:
    """The end of a generation that nobody has begun."""
    delta = TokenDelta(
        request_id=job.generation.request_id,
        choice_index=job.generation.choice_index,
        run=job.generation.run,
        finish_reason=FINISH_REASON_ERROR,
        num_prompt_tokens=job.generation.num_prompt_tokens - job.generation.num_output_tokens,
        error=error_to_wire(error),
    )
    return TokenBatch(decode_id=sender_id, incarnation=incarnation, deltas=[delta])


def release_to_wire(job: PrefillJob) -> ReleaseLeaseRequest:
    """The stored blocks that were kept for this job."""
    return ReleaseLeaseRequest(lease_id=job.kv_lease_id)


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """What a router reports of itself."""

    submitted_total: int
    missed_tokens_total: int
    queued_jobs: int
    waiting_s: float
    num_waiting: int
    num_prefill: int
    waiting_by_tenant: dict[str, int]
    waiting_by_bucket: dict[str, int]
    matches_total: int
    match_s_total: float


def fill_router_load(report: LoadReport, facts: RouterFacts) -> None:
    report.router.submitted_requests_total = facts.submitted_total
    report.router.missed_prompt_tokens_total = facts.missed_tokens_total
    report.router.queued_jobs = facts.queued_jobs
    report.router.waiting_s = facts.waiting_s
    report.router.num_waiting = facts.num_waiting
    report.router.num_prefill = facts.num_prefill
    report.router.waiting_by_tenant.update(facts.waiting_by_tenant)
    report.router.waiting_by_bucket.update(facts.waiting_by_bucket)
    report.router.matches_total = facts.matches_total
    report.router.match_s_total = facts.match_s_total
