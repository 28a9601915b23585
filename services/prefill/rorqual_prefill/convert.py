"""Wire <-> domain: the only importer of generated messages in this service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rorqual_policy.blocks import ImageSpan
from rorqual_policy.provenance import Provenance
from rorqual_policy.step_cost import StepCost
from rorqual_proto.v1 import (
    decode_pb2,
    generation_pb2,
    kvmeta_pb2,
    load_pb2,
    prefill_pb2,
    router_pb2,
    tensor_pb2,
    vision_pb2,
)
from rorqual_runtime import subjects
from rorqual_runtime.errors import InvalidRequest, ServingError, Unsupported, error_to_wire
from rorqual_runtime.expert_load import ExpertLoad, fill_expert_load
from rorqual_runtime.leases import LeaseHandle
from rorqual_runtime.windows import WindowPlace

from rorqual_prefill.hit_counts import HitCounts
from rorqual_prefill.job import Job, JobImage, JobKey

JobMessage = prefill_pb2.PrefillJob
AssignmentMessage = prefill_pb2.PrefillAssignment
AssignmentReplyMessage = prefill_pb2.PrefillAssignmentReply
RoomMessage = prefill_pb2.PrefillRoom
LoadMessage = load_pb2.LoadReport
CancelMessage = router_pb2.CancelRequest
PlaceReplyMessage = router_pb2.PlaceReply
HandoverReplyMessage = decode_pb2.HandoverReply
VisionReplyMessage = vision_pb2.VisionEncodeReply
BlockReadReplyMessage = decode_pb2.BlockReadReply


def job_from_wire(wire: prefill_pb2.PrefillJob) -> Job:
    """The job as this service sees it.

    Raises: InvalidRequest when a field no generation can do without is missing; Unsupported for
        an adapter: none is loaded here, and its keys are not the bare model's.
    """
    generation = wire.generation
    if generation.adapter:
        raise Unsupported(f"no adapter {generation.adapter!r} is loaded")
    if not generation.request_id or not generation.reply.recipe_id:
        raise InvalidRequest("a prefill job needs generation.request_id and reply.recipe_id")
    return Job(
        key=JobKey(generation.request_id, generation.choice_index, generation.run),
        model=generation.model,
        num_prompt_tokens=generation.num_prompt_tokens,
        max_new_tokens=max(1, generation.sampling.max_new_tokens - generation.num_output_tokens),
        cache_namespace=generation.cache_namespace,
        recipe_id=generation.reply.recipe_id,
        deadline_unix_s=generation.deadline_unix_s,
        num_matched_blocks=wire.num_matched_blocks,
        num_exact_blocks=wire.num_exact_blocks,
        miss_reason=wire.miss_reason,
        exact_only=wire.exact_only,
        kv_lease_id=wire.kv_lease_id,
        submitted_unix_s=wire.submitted_unix_s,
        prompt=generation.prompt,
        generation=generation,
        compiled_grammar=wire.compiled_grammar if wire.HasField("compiled_grammar") else None,
        windows=_windows_from_wire(wire),
        images=_images_from_wire(wire),
        is_plain_draw=_is_plain_draw(generation),
        num_output_tokens=generation.num_output_tokens,
        stop_ids=frozenset(generation.sampling.stop_token_ids),
    )


def _windows_from_wire(wire: prefill_pb2.PrefillJob) -> tuple[tuple[int, WindowPlace], ...]:
    return tuple(
        (
            place.num_blocks,
            WindowPlace(place.holder_id, place.expires_unix_s, place.replayed),
        )
        for place in wire.windows
        if subjects.is_token(place.holder_id)
    )


def lease_from_wire(wire: prefill_pb2.PrefillAssignment) -> LeaseHandle:
    """The job that a router gives away."""
    headers = dict(wire.headers)
    return LeaseHandle(wire.subject, wire.lease_subject, headers, wire.job, wire.num_begun)


def room_to_wire(
    *,
    instance_id: str,
    incarnation: int,
    seq: int,
    buckets: Iterable[str],
    is_open: bool,
    pending_s: float,
    longest_s: float,
    running_s: float,
    cost: StepCost,
) -> prefill_pb2.PrefillRoom:
    """What this instance could take on."""
    return prefill_pb2.PrefillRoom(
        instance_id=instance_id,
        incarnation=incarnation,
        seq=seq,
        buckets=buckets,
        open=is_open,
        pending_s=pending_s,
        longest_s=longest_s,
        running_s=running_s,
        cost=prefill_pb2.StepCost(**cost._asdict()),
    )


def untried_to_wire(key: JobKey, stream_seq: int) -> prefill_pb2.UntriedJob:
    """A job that goes back for no fault of its own. stream_seq: its place on the queue."""
    return prefill_pb2.UntriedJob(
        request_id=key.request_id,
        choice_index=key.choice_index,
        run=key.run,
        stream_seq=stream_seq,
    )


def taken_to_wire(room: prefill_pb2.PrefillRoom) -> prefill_pb2.PrefillAssignmentReply:
    """Yes, and what is left beside it."""
    return prefill_pb2.PrefillAssignmentReply(taken=room)


def _is_plain_draw(generation: generation_pb2.Generation) -> bool:
    wish = generation.sampling
    has_rules = bool(
        wish.frequency_penalty
        or wish.presence_penalty
        or wish.repetition_penalty not in (0, 1)
        or wish.logit_bias
        or wish.min_new_tokens
    )
    is_greedy = wish.temperature <= 0 and not wish.logprobs
    return is_greedy and not has_rules and not generation.HasField("constraint")


def _images_from_wire(wire: prefill_pb2.PrefillJob) -> tuple[JobImage, ...]:
    tickets = list(wire.image_embeddings)
    missing = len(wire.generation.images) - len(tickets)
    tickets += [tensor_pb2.TensorTicket()] * missing
    return tuple(
        JobImage(
            ImageSpan(image.first_token, image.num_tokens, image.digest),
            ticket,
            image.pixels,
            image.param,
        )
        for image, ticket in zip(wire.generation.images, tickets, strict=False)
    )


def encode_to_wire(job: Job, image: JobImage) -> vision_pb2.VisionEncodeRequest:
    """Ask for the embeddings of an image that came without, or whose are gone."""
    return vision_pb2.VisionEncodeRequest(
        request_id=job.key.request_id,
        model=job.model,
        image_digest=image.span.digest,
        pixels=image.pixels,
    )


def tokens_to_wire(token_ids: np.ndarray) -> bytes:
    """Token ids as they travel."""
    return token_ids.astype("<i4", copy=False).tobytes()


def place_to_wire(job: Job, excluded_ids: Iterable[str]) -> router_pb2.PlaceRequest:
    """Ask for a decode instance other than the excluded ones."""
    return router_pb2.PlaceRequest(
        request_id=job.key.request_id,
        choice_index=job.key.choice_index,
        num_context_tokens=job.num_prompt_tokens,
        max_new_tokens=job.max_new_tokens,
        excluded_ids=sorted(excluded_ids),
    )


@dataclass(frozen=True, slots=True)
class HandoverParts:
    """What a handover says beyond the job. Fields of type Any are wire values."""

    last_block_key: bytes
    """Of the last full prompt block; empty where there is none."""
    num_stored_blocks: int
    num_cached_tokens: int
    prompt: Any
    kv_pages: Any
    first_logits: Any
    model_fingerprint: str
    window: Any = None
    """Window state behind the prompt; None where the model has no windows."""
    provenance: Provenance = Provenance.EXACT
    """Of what was computed here."""
    miss_reason: str = ""
    """Why no more was cached; empty where nothing was missed."""


def handover_to_wire(job: Job, parts: HandoverParts) -> decode_pb2.HandoverRequest:
    """The generation with its computed KV by reference, for the decode instance."""
    wire = decode_pb2.HandoverRequest(
        generation=job.generation,
        last_block_key=parts.last_block_key,
        num_stored_blocks=parts.num_stored_blocks,
        num_cached_tokens=parts.num_cached_tokens,
        cache_miss_reason=parts.miss_reason,
        kv_pages=parts.kv_pages,
        first_logits=parts.first_logits,
        window=parts.window,
        replayed=parts.provenance is Provenance.REPLAYED,
        compiled_grammar=job.compiled_grammar,
        model_fingerprint=parts.model_fingerprint,
        submitted_unix_s=job.submitted_unix_s,
    )
    wire.generation.prompt.CopyFrom(parts.prompt)
    for image in wire.generation.images:
        image.ClearField("pixels")
    return wire


def first_token_to_wire(
    job: Job, token_id: int, *, num_cached_tokens: int, miss_reason: str
) -> decode_pb2.TokenBatch:
    """The first token, which decode will send again with the others.

    In nobody's name: until a decode instance has the prompt, none can be asked for it.
    """
    delta = decode_pb2.TokenDelta(
        request_id=job.key.request_id,
        choice_index=job.key.choice_index,
        run=job.key.run,
        token_ids=[token_id],
        num_prompt_tokens=job.num_prompt_tokens,
        num_cached_tokens=num_cached_tokens,
        cache_miss_reason=miss_reason,
    )
    return decode_pb2.TokenBatch(deltas=[delta])


def failure_to_wire(
    job: Job, error: ServingError, *, sender_id: str, incarnation: int
) -> decode_pb2.TokenBatch:
    """The end of a generation that never reached decode."""
    delta = decode_pb2.TokenDelta(
        request_id=job.key.request_id,
        choice_index=job.key.choice_index,
        run=job.key.run,
        finish_reason=decode_pb2.FINISH_REASON_ERROR,
        num_prompt_tokens=job.num_prompt_tokens - job.num_output_tokens,
        error=error_to_wire(error),
    )
    return decode_pb2.TokenBatch(decode_id=sender_id, incarnation=incarnation, deltas=[delta])


def forget_to_wire(
    fingerprint: str, keys: list[bytes], reason: str
) -> kvmeta_pb2.ForgetBlocksRequest:
    """Blocks that the store does not have, whatever kvmeta believes."""
    return kvmeta_pb2.ForgetBlocksRequest(model_fingerprint=fingerprint, keys=keys, reason=reason)


def release_to_wire(lease_id: str) -> kvmeta_pb2.ReleaseLeaseRequest:
    """The blocks of this lease have been read."""
    return kvmeta_pb2.ReleaseLeaseRequest(lease_id=lease_id)


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """What this instance reports a few times a second."""

    num_active_requests: int
    num_used_pages: int
    num_total_pages: int
    num_used_windows: int
    num_total_windows: int
    num_replayed_tokens: int
    """Most of a stored prefix that may have to run again."""
    queued_tokens: int
    tokens_per_s: float
    capacity_tokens_per_s: float
    """Of full steps; 0 = not known."""
    model_fingerprint: str
    max_context_tokens: int
    hit_counts: HitCounts
    experts: Sequence[ExpertLoad] = ()
    num_cancelled: Mapping[str, int] = field(default_factory=dict)
    """By phase, since start."""


def fill_load(report: load_pb2.LoadReport, facts: LoadFacts) -> None:
    """Put the facts into a load report."""
    report.num_active_requests = facts.num_active_requests
    report.num_used_pages = facts.num_used_pages
    report.num_total_pages = facts.num_total_pages
    report.num_used_windows = facts.num_used_windows
    report.num_total_windows = facts.num_total_windows
    report.model_fingerprint = facts.model_fingerprint
    report.max_context_tokens = facts.max_context_tokens
    report.prefill.queued_tokens = facts.queued_tokens
    report.prefill.tokens_per_s = facts.tokens_per_s
    report.prefill.capacity_tokens_per_s = facts.capacity_tokens_per_s
    report.prefill.num_replayed_tokens = facts.num_replayed_tokens
    report.hit_path.CopyFrom(load_pb2.HitPathLoad(**asdict(facts.hit_counts)))
    fill_expert_load(report, facts.experts)
    report.cancelled_total.update(facts.num_cancelled)


@dataclass(frozen=True, slots=True)
class RelayFacts:
    """What a decode instance says of its reading for others."""

    host_id: str
    queued_bytes: int
    bytes_per_s: float
    """0 = not measured lately."""
    store_id: str
    """Of the store that it reads."""


def relay_from_wire(report: load_pb2.LoadReport, fingerprint: str) -> RelayFacts | None:
    """None when it reads nothing for us: another model, leaving, or not said."""
    relay = report.relay
    if report.model_fingerprint != fingerprint or report.draining or not relay.host_id:
        return None
    return RelayFacts(relay.host_id, relay.queued_bytes, relay.bytes_per_s, relay.store_id)


def block_read_to_wire(fingerprint: str, keys: Iterable[bytes]) -> decode_pb2.BlockReadRequest:
    """Ask a decode instance for stored blocks."""
    return decode_pb2.BlockReadRequest(model_fingerprint=fingerprint, packed_keys=b"".join(keys))


def read_from_wire(reply: decode_pb2.BlockReadReply) -> list[bool]:
    """Which of the blocks it has."""
    return [bool(byte) for byte in reply.is_read]
