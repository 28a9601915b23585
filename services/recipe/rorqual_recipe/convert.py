"""Wire <-> domain. Nothing else in this service touches generated messages."""

from collections.abc import Iterable, Sequence

from rorqual_proto.v1.decode_pb2 import (
    FINISH_REASON_CANCELLED,
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    FINISH_REASON_UNSPECIFIED,
    DropRunsRequest,
    RepeatTokensRequest,
    ResendReply,
    ResendRequest,
    TokenBatch,
    TokenDelta,
)
from rorqual_proto.v1.generation_pb2 import (
    CONSTRAINT_KIND_EBNF,
    CONSTRAINT_KIND_JSON_OBJECT,
    CONSTRAINT_KIND_JSON_SCHEMA,
    CONSTRAINT_KIND_REGEX,
    CONSTRAINT_KIND_STRUCTURAL_TAG,
    TRAFFIC_CLASS_AGENT,
    TRAFFIC_CLASS_CHAT,
    Constraint,
    Generation,
    LogitBias,
    PromptImage,
    ReplyRoute,
    SamplingParams,
)
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_proto.v1.recipe_pb2 import (
    PROTOCOL_CHAT_COMPLETIONS,
    PROTOCOL_COMPLETIONS,
    PROTOCOL_COUNT_TOKENS,
    PROTOCOL_DETOKENIZE,
    PROTOCOL_MESSAGES,
    PROTOCOL_RESPONSE_DELETE,
    PROTOCOL_RESPONSE_INPUT_ITEMS,
    PROTOCOL_RESPONSE_RETRIEVE,
    PROTOCOL_RESPONSES,
    PROTOCOL_TOKENIZE,
    DirectAnswer,
    Encoded,
    EncodeReply,
    EncodeRequest,
    EventBatch,
    ListModelsReply,
    ListModelsRequest,
    ModelInfo,
    ProtocolError,
    RenderErrorRequest,
    ResendEventsReply,
    ResendEventsRequest,
    StreamEvents,
    Usage,
)
from rorqual_proto.v1.router_pb2 import CancelRequest, SubmitReply, SubmitRequest
from rorqual_proto.v1.tensor_pb2 import Payload
from rorqual_proto.v1.vision_pb2 import VisionPrepareReply, VisionPrepareRequest
from rorqual_runtime.errors import (
    Cancelled,
    Internal,
    ServingError,
    Unsupported,
    error_from_wire,
    error_to_wire,
)

from rorqual_recipe.choices import Delta, TakeOver
from rorqual_recipe.conversation import ConstraintKind, ImagePart, OutputConstraint
from rorqual_recipe.encode import TOKEN_BYTES, EncodedRequest, SamplingPlan, cache_namespace
from rorqual_recipe.images import PlacedImage, PreparedImage
from rorqual_recipe.model import ServedModel
from rorqual_recipe.output.events import FinishReason, TokenLogprob
from rorqual_recipe.protocols import DIRECT_PROTOCOLS, PROTOCOLS
from rorqual_recipe.protocols.base import ProtocolAdapter, RenderedError, TokenUsage
from rorqual_recipe.protocols.direct import DirectProtocol
from rorqual_recipe.streams import Events, StreamSource
from rorqual_recipe.tokens.cache import TokenCache

__all__ = [
    "CancelRequest",
    "DropRunsRequest",
    "EncodeReply",
    "EncodeRequest",
    "EventBatch",
    "Generation",
    "ListModelsReply",
    "ListModelsRequest",
    "LoadReport",
    "ProtocolError",
    "RenderErrorRequest",
    "RepeatTokensRequest",
    "ResendEventsReply",
    "ResendEventsRequest",
    "ResendReply",
    "ResendRequest",
    "SubmitReply",
    "SubmitRequest",
    "TokenBatch",
    "VisionPrepareReply",
]

_PROTOCOL_NAMES = {
    PROTOCOL_CHAT_COMPLETIONS: "chat_completions",
    PROTOCOL_RESPONSES: "responses",
    PROTOCOL_MESSAGES: "messages",
    PROTOCOL_COMPLETIONS: "completions",
    PROTOCOL_TOKENIZE: "tokenize",
    PROTOCOL_DETOKENIZE: "detokenize",
    PROTOCOL_COUNT_TOKENS: "count_tokens",
    PROTOCOL_RESPONSE_RETRIEVE: "response_retrieve",
    PROTOCOL_RESPONSE_DELETE: "response_delete",
    PROTOCOL_RESPONSE_INPUT_ITEMS: "response_input_items",
}
_FINISH_REASONS = {
    FINISH_REASON_STOP: FinishReason.STOP,
    FINISH_REASON_LENGTH: FinishReason.LENGTH,
}
_CONSTRAINT_KINDS = {
    ConstraintKind.JSON_SCHEMA: CONSTRAINT_KIND_JSON_SCHEMA,
    ConstraintKind.JSON_OBJECT: CONSTRAINT_KIND_JSON_OBJECT,
    ConstraintKind.REGEX: CONSTRAINT_KIND_REGEX,
    ConstraintKind.EBNF: CONSTRAINT_KIND_EBNF,
    ConstraintKind.STRUCTURAL_TAG: CONSTRAINT_KIND_STRUCTURAL_TAG,
}


def protocol_from_wire(protocol: int) -> ProtocolAdapter | DirectProtocol:
    """The handler of a wire protocol; one with `answer` needs no generation.

    Raises: Unsupported.
    """
    name = _PROTOCOL_NAMES.get(protocol, "")  # type: ignore[call-overload]
    found = PROTOCOLS.get(name) or DIRECT_PROTOCOLS.get(name)
    if found is None:
        raise Unsupported(f"protocol {name or protocol} is not supported by this version")
    return found


def no_prompt() -> Payload:
    """In place of a prompt that nobody will read."""
    return Payload()


def answer_to_wire(http_status: int, body: Payload) -> EncodeReply:
    """A whole answer that needed no generation."""
    return EncodeReply(answer=DirectAnswer(http_status=http_status, body=body))


def encoded_to_wire(
    request: EncodeRequest,
    encoded: EncodedRequest,
    prompts: Sequence[Payload],
    recipe_id: str,
) -> EncodeReply:
    """prompts: payloads of the encoded request's prompts."""
    parsed = encoded.parsed
    generations = generations_to_wire(request, encoded, prompts, recipe_id)
    return EncodeReply(
        encoded=Encoded(generations=generations, stream=parsed.stream, warnings=parsed.warnings)
    )


def source_of(request: EncodeRequest, encoded: EncodedRequest, recipe_id: str) -> StreamSource:
    """What a stream keeps in order to submit its generations again."""
    prompts = [no_prompt()] * len(encoded.prompts)
    generations = generations_to_wire(request, encoded, prompts, recipe_id)
    indices = [encoded.prompt_index_of(index) for index in range(len(generations))]
    return StreamSource(generations, indices)


def restarted(
    generation: Generation, prompt: Payload, data: bytes, num_output_bytes: int, run: int
) -> Generation:
    """The generation behind its output so far. prompt: a payload of data, which ends with that."""
    wire = Generation()
    wire.CopyFrom(generation)
    wire.prompt.CopyFrom(prompt)
    wire.num_prompt_tokens = len(data) // TOKEN_BYTES
    wire.num_output_tokens = num_output_bytes // TOKEN_BYTES
    wire.run = run
    return wire


def submission_of(generation: Generation) -> SubmitRequest:
    """One choice by itself."""
    return SubmitRequest(generations=[generation])


def drop_runs(request_id: str, choice_index: int, *, before_run: int) -> DropRunsRequest:
    """Whoever runs an earlier one lets go of it."""
    return DropRunsRequest(request_id=request_id, choice_index=choice_index, before_run=before_run)


def generations_to_wire(
    request: EncodeRequest,
    encoded: EncodedRequest,
    prompts: Sequence[Payload],
    recipe_id: str,
) -> list[Generation]:
    """One a choice. prompts: payloads of the encoded request's prompts."""
    parsed = encoded.parsed
    images = [_image_to_wire(image) for image in encoded.images]
    return [
        Generation(
            request_id=request.request_id,
            choice_index=index,
            num_choices=parsed.num_choices,
            model=parsed.model,
            prompt=prompts[encoded.prompt_index_of(index)],
            num_prompt_tokens=len(encoded.prompts[encoded.prompt_index_of(index)]) // TOKEN_BYTES,
            sampling=_sampling_to_wire(encoded.sampling, index),
            constraint=_constraint_to_wire(encoded.constraint),
            traffic_class=TRAFFIC_CLASS_AGENT
            if parsed.conversation.has_tool_turns
            else TRAFFIC_CLASS_CHAT,
            cache_namespace=cache_namespace(request.tenant, parsed.cache_salt),
            tenant=request.tenant,
            priority=parsed.priority,
            cache_ttl_s=parsed.cache_ttl_s,
            reply=ReplyRoute(recipe_id=recipe_id, gateway_id=request.gateway_id),
            deadline_unix_s=request.deadline_unix_s,
            images=images,
        )
        for index in range(parsed.num_choices)
    ]


def _image_to_wire(placed: PlacedImage) -> PromptImage:
    return PromptImage(
        first_token=placed.first_token,
        num_tokens=placed.image.num_tokens,
        digest=placed.image.digest,
        num_patches=placed.image.num_patches,
        pixels=placed.image.pixels,
        param=placed.param,
    )


def prepare_to_wire(
    request_id: str, model: str, part: ImagePart, image: Payload | None
) -> VisionPrepareRequest:
    """Ask what an image will be to the model. image: its file; None = it is at part.url."""
    return VisionPrepareRequest(
        request_id=request_id,
        model=model,
        url=part.url if image is None else None,
        image=image,
        detail=part.detail,
        param=part.param,
    )


def prepared_from_wire(reply: VisionPrepareReply) -> PreparedImage:
    """What vision answered. Raises: Internal when that is no image."""
    found = reply.prepared
    if found.num_tokens < 1 or not found.image_digest:
        raise Internal("vision said nothing about an image")
    return PreparedImage(found.image_digest, found.num_tokens, found.num_patches, found.pixels)


def _sampling_to_wire(plan: SamplingPlan, choice_index: int) -> SamplingParams:
    return SamplingParams(
        temperature=plan.temperature,
        top_p=plan.top_p,
        top_k=plan.top_k,
        min_p=plan.min_p,
        seed=plan.seed_of(choice_index),
        max_new_tokens=plan.max_new_tokens,
        ignore_eos=plan.ignore_eos,
        logprobs=plan.logprobs,
        top_logprobs=plan.top_logprobs,
        frequency_penalty=plan.frequency_penalty,
        presence_penalty=plan.presence_penalty,
        repetition_penalty=plan.repetition_penalty,
        logit_bias=[LogitBias(token_id=token, bias=bias) for token, bias in plan.logit_bias],
        min_new_tokens=plan.min_new_tokens,
    )


def _constraint_to_wire(constraint: OutputConstraint | None) -> Constraint | None:
    if constraint is None:
        return None
    kind = _CONSTRAINT_KINDS[constraint.kind]
    return Constraint(kind=kind, source=constraint.source, param=constraint.param)


def error_to_reply(error: RenderedError, cause: ServingError | None = None) -> EncodeReply:
    """An encode that ended in an error."""
    return EncodeReply(error=protocol_error_to_wire(error, cause))


def protocol_error_to_wire(
    error: RenderedError, cause: ServingError | None = None
) -> ProtocolError:
    """A rendered error, with its cause as data where it has one."""
    return ProtocolError(
        http_status=error.http_status,
        body_json=error.body_json,
        retry_after_s=error.retry_after_s,
        sse_frames=error.sse_frames,
        info=error_to_wire(cause) if cause is not None else None,
    )


def error_request_from_wire(request: RenderErrorRequest) -> ServingError:
    """The error to be rendered."""
    return error_from_wire(request.error)


def delta_from_wire(delta: TokenDelta) -> Delta:
    """Tokens of one choice. Raises: ServingError when the generation failed."""
    if delta.HasField("error"):
        raise error_from_wire(delta.error)
    return Delta(
        choice_index=delta.choice_index,
        seq=delta.seq,
        token_ids=delta.token_ids,
        logprobs=_logprobs_from_wire(delta) if delta.logprobs else (),
        finish_reason=_finish_reason_from_wire(delta.finish_reason),
        num_prompt_tokens=delta.num_prompt_tokens,
        num_cached_tokens=delta.num_cached_tokens,
        cache_miss_reason=delta.cache_miss_reason,
        run=delta.run,
    )


def _finish_reason_from_wire(reason: int) -> FinishReason | None:
    if reason == FINISH_REASON_UNSPECIFIED:
        return None
    if reason == FINISH_REASON_CANCELLED:
        raise Cancelled()
    known: FinishReason | None = _FINISH_REASONS.get(reason)  # type: ignore[call-overload]
    if known is None:
        raise Internal("the generation ended without saying why")
    return known


def _logprobs_from_wire(delta: TokenDelta) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            entry.token_id,
            entry.logprob,
            tuple(zip(entry.top_ids, entry.top_logprobs, strict=False)),
        )
        for entry in delta.logprobs
    ]


def events_to_wire(events: Events) -> StreamEvents:
    """Events of one request."""
    return StreamEvents(
        request_id=events.request_id,
        seq=events.seq,
        data=events.data,
        done=events.is_last,
        usage=_usage_to_wire(events.usage),
        finish_reasons=events.finish_reasons,
        num_tokens=events.num_tokens,
        decode_ids=events.decode_ids,
        take_over=events.take_over,
    )


def _usage_to_wire(usage: TokenUsage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cache_miss_reason=usage.cache_miss_reason,
    )


def take_over_from_wire(request: EncodeRequest) -> TakeOver | None:
    """What an instance before this one has answered; None for a new request."""
    if not request.HasField("resume"):
        return None
    resume = request.resume
    return TakeOver(
        number=resume.take_over,
        lost_recipe_id=resume.lost_recipe_id,
        next_seq=resume.next_seq,
        num_tokens=resume.num_tokens,
        finish_reasons=resume.finish_reasons,
        decode_ids=resume.decode_ids,
    )


def failure_to_wire(
    request_id: str,
    seq: int,
    rendered: RenderedError,
    cause: ServingError,
    usage: TokenUsage,
    take_over: int,
) -> StreamEvents:
    """The last event of a request that failed; its usage is what was generated all the same."""
    return StreamEvents(
        request_id=request_id,
        seq=seq,
        done=True,
        error=protocol_error_to_wire(rendered, cause),
        usage=_usage_to_wire(usage),
        take_over=take_over,
    )


def resent_to_wire(streams: Iterable[StreamEvents], listener_id: str) -> ResendEventsReply:
    """Events again, as they were sent. listener_id: the gateway that gets those to come."""
    return ResendEventsReply(events=EventBatch(streams=streams), listener_id=listener_id)


def request_cancel(request_id: str, *, reason: str) -> CancelRequest:
    """Everybody lets go of a request."""
    return CancelRequest(request_id=request_id, reason=reason)


def choice_cancel(request_id: str, choice_index: int, *, reason: str) -> CancelRequest:
    """One choice of a request ends."""
    return CancelRequest(request_id=request_id, reason=reason, choice_index=choice_index)


def batch_to_wire(streams: Iterable[StreamEvents]) -> EventBatch:
    """One message for one gateway."""
    return EventBatch(streams=streams)


def models_to_wire(models: Sequence[ServedModel]) -> ListModelsReply:
    """What is served."""
    return ListModelsReply(
        models=[
            ModelInfo(
                id=model.model_id,
                max_context_tokens=model.max_context_tokens,
                has_vision=model.has_vision,
                created_unix_s=model.created_unix_s,
            )
            for model in models
        ]
    )


def fill_work(report: LoadReport, *, num_tokens: int, cpu_s: float) -> None:
    """Tokens read and written since start, and the processor time of all that."""
    report.recipe.tokens_total = num_tokens
    report.recipe.cpu_ms_total = int(cpu_s * 1e3)


def fill_load(report: LoadReport, cache: TokenCache, num_restarted: int) -> None:
    """What recipe adds to its load reports: how much encoding the token cache has saved, and how
    many generations went on elsewhere."""
    report.recipe.restarted_generations_total = num_restarted
    counts = cache.counts
    report.recipe.encoded_chars_total = counts.hit_chars + counts.missed_chars
    report.recipe.cached_chars_total = counts.hit_chars
    report.recipe.token_cache_bytes = cache.num_bytes
