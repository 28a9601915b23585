"""Wire <-> domain: the only importer of generated messages in this service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from rorqual_engine.logit_rules import LogitRules
from rorqual_policy.blocks import BLOCK_TOKENS, KEY_BYTES, ImageSpan
from rorqual_policy.provenance import Provenance
from rorqual_proto.v1 import (
    decode_pb2,
    generation_pb2,
    grammar_pb2,
    kvmeta_pb2,
    load_pb2,
    router_pb2,
)
from rorqual_runtime.errors import InvalidRequest, error_to_wire
from rorqual_runtime.expert_load import fill_expert_load

from rorqual_decode.block_writer import StoredBlock
from rorqual_decode.generation import (
    ChoiceKey,
    GenerationKey,
    GenerationSpec,
    GenerationState,
    Origin,
    SamplingSpec,
    TokenScores,
)
from rorqual_decode.load_facts import EngineFacts, LoadFacts, PauseFacts, RelayFacts
from rorqual_decode.publisher import Slice

HandoverMessage = decode_pb2.HandoverRequest
HandoverReplyMessage = decode_pb2.HandoverReply
ResendMessage = decode_pb2.ResendRequest
ResendReplyMessage = decode_pb2.ResendReply
DropRunsMessage = decode_pb2.DropRunsRequest
RepeatMessage = decode_pb2.RepeatTokensRequest
CancelMessage = router_pb2.CancelRequest
CompileReplyMessage = grammar_pb2.CompileReply
RegisterReplyMessage = kvmeta_pb2.RegisterBlocksReply
DropMessage = kvmeta_pb2.DropBlocksRequest
HoldMessage = kvmeta_pb2.HoldBlocksRequest
BlockReadMessage = decode_pb2.BlockReadRequest
BlockReadReplyMessage = decode_pb2.BlockReadReply

STORE_NAME = "local"


@dataclass(frozen=True, slots=True)
class HandoverOffer:
    """What prefill hands over. Fields of type Any are wire values, read by the tensor plane."""

    spec: GenerationSpec
    generation: Any
    """As it came."""
    last_block_key: bytes
    num_stored_blocks: int
    model_fingerprint: str
    prompt: Any
    """With the output of earlier runs."""
    kv_pages: Any
    first_logits: Any
    """None when the last token has yet to run: the KV is of all before it."""
    compiled_grammar: Any
    """None without constraint."""
    constraint: Any
    images: tuple[ImageSpan, ...] = ()
    """Of the prompt, in order of their places."""
    window: Any = None
    """Window state behind the prompt; None when none came."""

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose KV comes along."""
        return self.spec.num_tokens - (self.first_logits is None)


def origin_of(offer: HandoverOffer) -> Origin:
    """What is kept of an offer once its prompt was read."""
    generation = generation_pb2.Generation()
    generation.CopyFrom(offer.generation)
    generation.ClearField("prompt")
    return Origin(generation, offer.compiled_grammar)


def offer_from_wire(wire: decode_pb2.HandoverRequest) -> HandoverOffer:
    """Raises: InvalidRequest when the offer can't be a generation."""
    generation = wire.generation
    if not generation.request_id or not generation.reply.recipe_id:
        raise InvalidRequest("a handover needs generation.request_id and reply.recipe_id")
    if generation.num_prompt_tokens <= generation.num_output_tokens:
        raise InvalidRequest("a handover needs at least one prompt token")
    if not wire.HasField("first_logits") and not generation.num_output_tokens:
        raise InvalidRequest("a handover needs first_logits or output to go on behind")
    return HandoverOffer(
        spec=_spec_from_wire(wire),
        generation=generation,
        last_block_key=wire.last_block_key,
        num_stored_blocks=wire.num_stored_blocks,
        model_fingerprint=wire.model_fingerprint,
        prompt=generation.prompt,
        kv_pages=wire.kv_pages,
        first_logits=wire.first_logits if wire.HasField("first_logits") else None,
        compiled_grammar=wire.compiled_grammar if wire.HasField("compiled_grammar") else None,
        constraint=generation.constraint if generation.HasField("constraint") else None,
        images=tuple(
            ImageSpan(image.first_token, image.num_tokens, image.digest)
            for image in generation.images
        ),
        window=wire.window if wire.HasField("window") else None,
    )


def _spec_from_wire(wire: decode_pb2.HandoverRequest) -> GenerationSpec:
    generation = wire.generation
    return GenerationSpec(
        key=GenerationKey(generation.request_id, generation.choice_index, generation.run),
        model=generation.model,
        recipe_id=generation.reply.recipe_id,
        num_prompt_tokens=generation.num_prompt_tokens - generation.num_output_tokens,
        num_output_tokens=generation.num_output_tokens,
        num_cached_tokens=wire.num_cached_tokens,
        sampling=_sampling_from_wire(generation.sampling),
        cache_namespace=generation.cache_namespace,
        traffic_class=int(generation.traffic_class),
        deadline_unix_s=generation.deadline_unix_s,
        submitted_unix_s=wire.submitted_unix_s,
        tenant=generation.tenant,
        provenance=Provenance.REPLAYED if wire.replayed else Provenance.EXACT,
        cache_miss_reason=wire.cache_miss_reason,
        cache_ttl_s=generation.cache_ttl_s,
        has_siblings=generation.num_choices > 1,
    )


def _sampling_from_wire(wire: generation_pb2.SamplingParams) -> SamplingSpec:
    return SamplingSpec(
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        seed=wire.seed,
        max_new_tokens=max(1, wire.max_new_tokens),
        stop_token_ids=frozenset(wire.stop_token_ids),
        ignore_eos=wire.ignore_eos,
        num_logprobs=wire.top_logprobs if wire.logprobs else None,
        rules=_rules_from_wire(wire),
    )


def _rules_from_wire(wire: generation_pb2.SamplingParams) -> LogitRules:
    try:
        return LogitRules(
            frequency_penalty=wire.frequency_penalty,
            presence_penalty=wire.presence_penalty,
            repetition_penalty=wire.repetition_penalty or 1.0,
            logit_bias=tuple((entry.token_id, entry.bias) for entry in wire.logit_bias),
            min_new_tokens=wire.min_new_tokens,
        )
    except ValueError as err:
        raise InvalidRequest(str(err), "sampling") from err


def accepted_to_wire(duplicate: bool) -> decode_pb2.HandoverReply:
    """The prompt is ours now; prefill may let go."""
    return decode_pb2.HandoverReply(accepted=decode_pb2.HandoverAccepted(duplicate=duplicate))


@dataclass(frozen=True, slots=True)
class MoveParts:
    """Tickets of a generation on its way to another instance. Wire values."""

    prompt: Any
    kv_pages: Any
    window: Any
    """None where the model has none."""
    model_fingerprint: str


def tokens_to_wire(token_ids: np.ndarray) -> bytes:
    """Token ids as they travel."""
    return token_ids.astype("<i4", copy=False).tobytes()


def place_to_wire(
    spec: GenerationSpec, num_tokens: int, excluded_ids: Iterable[str]
) -> router_pb2.PlaceRequest:
    """Ask for an instance that could go on with it. num_tokens: of prompt and output so far."""
    num_output = num_tokens - spec.num_prompt_tokens
    return router_pb2.PlaceRequest(
        request_id=spec.key.request_id,
        choice_index=spec.key.choice_index,
        num_context_tokens=num_tokens,
        max_new_tokens=max(1, spec.sampling.max_new_tokens - num_output),
        excluded_ids=sorted(excluded_ids),
    )


def move_to_wire(state: GenerationState, run: int, parts: MoveParts) -> decode_pb2.HandoverRequest:
    """A running generation for another instance: its last token has yet to run."""
    spec = state.spec
    wire = decode_pb2.HandoverRequest(
        generation=state.origin.generation,
        last_block_key=state.last_block_key,
        num_stored_blocks=len(state.token_ids) // BLOCK_TOKENS,  # or on their way there
        num_cached_tokens=spec.num_cached_tokens,
        cache_miss_reason=spec.cache_miss_reason,
        kv_pages=parts.kv_pages,
        window=parts.window,
        replayed=spec.provenance is Provenance.REPLAYED,
        compiled_grammar=state.origin.compiled_grammar,
        model_fingerprint=parts.model_fingerprint,
        submitted_unix_s=spec.submitted_unix_s,
    )
    wire.generation.prompt.CopyFrom(parts.prompt)
    wire.generation.num_prompt_tokens = len(state.token_ids)
    wire.generation.num_output_tokens = state.num_output_tokens
    wire.generation.run = run
    return wire


def batch_to_wire(
    decode_id: str, incarnation: int, slices: Iterable[Slice]
) -> decode_pb2.TokenBatch:
    """One message for one recipe."""
    return decode_pb2.TokenBatch(
        decode_id=decode_id, incarnation=incarnation, deltas=[delta_to_wire(s) for s in slices]
    )


def delta_to_wire(piece: Slice) -> decode_pb2.TokenDelta:
    """Tokens [start, end) of a stream; the finish with the last of them."""
    stream, key = piece.stream, piece.stream.spec.key
    delta = decode_pb2.TokenDelta(
        request_id=key.request_id,
        choice_index=key.choice_index,
        seq=piece.start,
        run=key.run,
        token_ids=stream.token_ids[piece.start : piece.end],
    )
    if stream.scores:
        first = stream.first_scored
        delta.logprobs.extend(
            _scores_to_wire(scores)
            for scores in stream.scores[piece.start - first : piece.end - first]
        )
    if piece.start == 0 or piece.with_finish:
        delta.num_prompt_tokens = stream.spec.num_prompt_tokens
        delta.num_cached_tokens = stream.spec.num_cached_tokens
        delta.cache_miss_reason = stream.spec.cache_miss_reason
    if piece.with_finish and stream.finish is not None:
        delta.finish_reason = cast(Any, int(stream.finish))
        if stream.error is not None:
            delta.error.CopyFrom(error_to_wire(stream.error))
    return delta


def _scores_to_wire(scores: TokenScores) -> decode_pb2.TokenLogprobs:
    return decode_pb2.TokenLogprobs(
        token_id=scores.token_id,
        logprob=scores.logprob,
        top_ids=scores.top_ids,
        top_logprobs=scores.top_logprobs,
    )


def choice_of(wire: decode_pb2.ResendRequest | decode_pb2.DropRunsRequest) -> ChoiceKey:
    """Which generation its reader means."""
    return ChoiceKey(wire.request_id, wire.choice_index)


def resend_to_wire(piece: Slice) -> decode_pb2.ResendReply:
    """The missed part of a stream."""
    return decode_pb2.ResendReply(delta=delta_to_wire(piece))


def compile_to_wire(spec: GenerationSpec, constraint: Any) -> grammar_pb2.CompileRequest:
    """Ask for the compiled grammar again: the ticket that came has expired."""
    return grammar_pb2.CompileRequest(
        request_id=spec.key.request_id, model=spec.model, constraint=constraint
    )


def is_chat(traffic_class: int) -> bool:
    """A person's conversation, as against an agent's."""
    return traffic_class == generation_pb2.TRAFFIC_CLASS_CHAT


def named_keys(
    message: kvmeta_pb2.DropBlocksRequest
    | kvmeta_pb2.HoldBlocksRequest
    | decode_pb2.BlockReadRequest,
) -> list[bytes]:
    """Keys of the blocks that it is about; a torn one is left out."""
    packed = message.packed_keys
    ends = range(KEY_BYTES, len(packed) + 1, KEY_BYTES)
    return [packed[end - KEY_BYTES : end] for end in ends]


def blocks_to_wire(ticket: Any, is_read: Sequence[bool]) -> decode_pb2.BlockReadReply:
    """The blocks' rows, and which of them hold one."""
    return decode_pb2.BlockReadReply(blocks=ticket, is_read=bytes(is_read))


def fill_relay(report: load_pb2.LoadReport, facts: RelayFacts) -> None:
    """What those choose by who might ask to have blocks read."""
    report.relay.host_id = facts.host_id
    report.relay.queued_bytes = facts.queued_bytes
    report.relay.bytes_per_s = facts.bytes_per_s
    report.relay.relayed_blocks_total = facts.num_blocks
    report.relay.store_id = facts.store_id


def registration_to_wire(
    fingerprint: str, blocks: Sequence[StoredBlock]
) -> kvmeta_pb2.RegisterBlocksRequest:
    """Blocks that can be read from the store from now on."""
    return kvmeta_pb2.RegisterBlocksRequest(
        model_fingerprint=fingerprint,
        blocks=[
            kvmeta_pb2.BlockRecord(
                key=block.key,
                size_bytes=block.num_bytes,
                traffic_class=cast(Any, block.traits.traffic_class),
                store=STORE_NAME,
                provenance=cast(Any, int(block.traits.provenance)),
                tenant=block.traits.tenant,
                position=block.traits.position,
                content_key=block.traits.content_key,
                lifetime_s=block.traits.ttl_s,
            )
            for block in blocks
        ],
    )


def fill_pauses(report: load_pb2.LoadReport, facts: PauseFacts) -> None:
    """Put the facts into a load report."""
    report.decode.num_paused = facts.num_paused
    report.decode.pauses_total = facts.num_pauses


def fill_load(report: load_pb2.LoadReport, facts: LoadFacts, engine: EngineFacts) -> None:
    """Put the facts into a load report."""
    report.num_active_requests = facts.num_active_requests
    report.num_used_pages = engine.num_used_pages
    report.num_total_pages = engine.num_total_pages
    report.num_used_windows = engine.num_used_windows
    report.num_total_windows = engine.num_total_windows
    report.model_fingerprint = engine.model_fingerprint
    report.max_context_tokens = engine.max_context_tokens
    report.decode.num_running = facts.num_running
    report.decode.max_running = facts.max_running
    report.decode.kv_tokens = facts.kv_tokens
    report.decode.num_reserved_pages = engine.num_used_pages
    report.decode.step_s = facts.step_s
    report.decode.moved_generations_total = facts.num_moved
    report.cancelled_total.update(facts.num_cancelled)
    if facts.step_times:
        names = "base_s", "per_request_s", "per_kv_token_s"
        times = dict(zip(names, facts.step_times, strict=True))
        report.decode.step_times.CopyFrom(load_pb2.DecodeStepTimes(**times))
    fill_expert_load(report, engine.experts)
    report.decode.guess_rounds_total = facts.guesses.num_rounds
    report.decode.guessed_tokens_total = facts.guesses.num_guessed
    report.decode.taken_guesses_total = facts.guesses.num_taken
