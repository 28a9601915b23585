"""From a body to a stream that awaits tokens: CPU work off the loop, prompts published."""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from rorqual_runtime.errors import ServingError
from rorqual_runtime.payload import free_payload, put_payload
from rorqual_runtime.service import ServiceContext

from rorqual_recipe.choices import Choice, TakeOver
from rorqual_recipe.conversation import ImagePart
from rorqual_recipe.documents import PDF_WEIGHT_BYTES, reading_weight
from rorqual_recipe.encode import (
    EncodedRequest,
    encode_request,
    seed_of_request,
    with_images,
)
from rorqual_recipe.event_log import EventLog
from rorqual_recipe.images import ImageLimits, PreparedImage, prepare_images
from rorqual_recipe.lanes import WorkLane
from rorqual_recipe.model import ServedModel
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.plan import plan_answer
from rorqual_recipe.output.sequence import DeltaOrder
from rorqual_recipe.protocols.base import AnswerFacts, EventWriter, ParseLimits, ProtocolAdapter
from rorqual_recipe.protocols.direct import (
    DirectProtocol,
    DirectServices,
    RemembersAnswers,
    RequestContext,
    Result,
)
from rorqual_recipe.protocols.messages.thinking_signature import signing_key_of
from rorqual_recipe.response_memory import ResponseMemory
from rorqual_recipe.sealing import parse_sealing_keys
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.streams import RequestStream, StreamSource
from rorqual_recipe.vision import BusVision

TICKET_LEASE_S = 30.0
DEADLINE_GRACE_S = 5.0


class Intake:
    """Encodes requests and makes their streams."""

    def __init__(
        self,
        ctx: ServiceContext,
        settings: RecipeSettings,
        model: ServedModel,
        memory: ResponseMemory | None = None,
    ) -> None:
        self._ctx = ctx
        self._settings = settings
        self._model = model
        self._prompts = WorkLane(
            "long prompts",
            num_threads=settings.encode_threads,
            max_waiting=settings.max_waiting_encodes,
        )
        self._documents = WorkLane(
            "documents",
            num_threads=settings.document_threads,
            max_waiting=settings.max_waiting_documents,
        )
        self._limits = ParseLimits(
            max_choices=settings.max_choices,
            has_vision=model.takes_images,
            vocabulary_size=len(model.vocabulary.token_bytes),
            max_cache_ttl_s=settings.max_cache_ttl_s,
            drop_server_tools=settings.drop_server_tools,
            signing_key=signing_key_of(
                parse_sealing_keys(settings.sealing_key.get_secret_value()), model.fingerprint
            ),
        )
        self._vision = BusVision(ctx, model.model_id, timeout_s=settings.image_timeout_s)
        self._image_limits = ImageLimits(settings.max_images, settings.max_images_at_once)
        self._services = DirectServices(
            model, self._limits, self._compute, memory, self._prepare_images
        )

    async def encode(
        self, body: bytes, adapter: ProtocolAdapter, context: RequestContext
    ) -> EncodedRequest:
        """The request, parsed and encoded. Raises: RequestRefused; ServingError."""
        limits = self._limits
        if isinstance(adapter, RemembersAnswers):
            limits = replace(limits, prior=await adapter.prepare(body, context))

        def work() -> EncodedRequest:
            return encode_request(
                body,
                adapter,
                self._model,
                default_max_tokens=self._settings.default_max_tokens,
                limits=limits,
                default_seed=seed_of_request(context.request_id),
            )

        earlier_bytes = getattr(limits.prior, "num_bytes", 0)
        encoded = await self._compute(work, reading_weight(body) + earlier_bytes)
        if not encoded.rendered.images:
            return encoded
        images = await self._prepare_images(
            encoded.rendered.images,
            request_id=context.request_id,
            num_choices=encoded.parsed.num_choices,
        )
        return with_images(
            encoded, images, self._model, default_max_tokens=self._settings.default_max_tokens
        )

    async def _prepare_images(
        self, parts: Sequence[ImagePart], *, request_id: str = "", num_choices: int = 1
    ) -> list[PreparedImage]:
        """Raises: RequestRefused, ServingError."""
        return await prepare_images(
            parts,
            ask=self._vision,
            request_id=request_id,
            limits=self._image_limits,
            num_choices=num_choices,
        )

    async def answer(
        self, body: bytes, protocol: DirectProtocol, *, resource: str, tenant: str
    ) -> tuple[int, Any]:
        """HTTP status, and the body as a payload. Raises: RequestRefused; ServingError."""
        status, data = await protocol.answer(body, resource, tenant, self._services)
        return status, await put_payload(self._ctx.tensors, data, lease_s=TICKET_LEASE_S)

    def context_of(self, request_id: str, tenant: str) -> RequestContext:
        """What a protocol with a memory may use for a request."""
        return RequestContext(request_id, tenant, self._services)

    async def _compute(self, work: Callable[[], Result], num_bytes: int) -> Result:
        """See Compute."""
        if num_bytes <= self._settings.inline_encode_bytes:
            return work()
        lane = self._prompts if num_bytes < PDF_WEIGHT_BYTES else self._documents
        return await lane.run(work)

    async def publish_prompts(self, encoded: EncodedRequest) -> list[Any]:
        """Each prompt as a payload that its choices share; readers keep it. Raises: NoCapacity."""
        published: list[Any] = []
        try:
            for prompt in encoded.prompts:
                payload = await put_payload(self._ctx.tensors, prompt, lease_s=TICKET_LEASE_S)
                published.append(payload)
        except ServingError:
            self.release(published)
            raise
        return published

    def renew(self, prompts: Iterable[Any]) -> None:
        """Keep prompts readable; one whose lease has ended already stays gone."""
        for prompt in prompts:
            if prompt.HasField("ticket"):
                with contextlib.suppress(ServingError):
                    self._ctx.tensors.renew(prompt.ticket, TICKET_LEASE_S)

    def release(self, prompts: Iterable[Any]) -> None:
        """Free prompts that travel by reference."""
        for prompt in prompts:
            free_payload(self._ctx.tensors, prompt)

    def make_stream(
        self,
        encoded: EncodedRequest,
        adapter: ProtocolAdapter,
        *,
        request_id: str,
        gateway_id: str,
        tenant: str,
        deadline_unix_s: float,
        received_unix_s: float,
        prompts: list[Any],
        source: StreamSource,
        taken_over: TakeOver | None,
    ) -> RequestStream:
        """The stream of a request, which owns the prompts' payloads from now on."""
        parsed = encoded.parsed
        created_unix_s = received_unix_s or self._ctx.clock.now_unix_s()
        writer = adapter.make_writer(self._facts(encoded, request_id, created_unix_s), parsed)
        return RequestStream(
            request_id=request_id,
            gateway_id=gateway_id,
            adapter=adapter,
            writer=writer,
            choices=[
                self._choice(encoded, f"{request_id}/{index}", index, taken_over)
                for index in range(parsed.num_choices)
            ],
            num_prompt_tokens=encoded.num_prompt_tokens,
            expires_s=self._ctx.clock.monotonic_s() + self._lifetime_s(deadline_unix_s),
            log=EventLog(self._settings.max_event_log_bytes),
            prompts=prompts,
            source=source,
            before_end=self._before_end(adapter, writer, encoded, request_id, tenant),
            taken_over=taken_over,
        )

    def _before_end(
        self,
        adapter: ProtocolAdapter,
        writer: EventWriter,
        encoded: EncodedRequest,
        request_id: str,
        tenant: str,
    ) -> Callable[[], Awaitable[None] | None] | None:
        if not isinstance(adapter, RemembersAnswers):
            return None
        context = self.context_of(request_id, tenant)
        return lambda: adapter.completed(writer, encoded.parsed, context)

    def _facts(
        self, encoded: EncodedRequest, request_id: str, created_unix_s: float
    ) -> AnswerFacts:
        model = self._model
        return AnswerFacts(
            request_id=request_id,
            model=model.model_id,
            created_unix_s=int(created_unix_s),
            system_fingerprint=f"fp_{model.fingerprint[:12]}" if model.fingerprint else None,
            vocabulary=model.vocabulary,
            num_prompt_tokens=encoded.num_prompt_tokens,
            thinks=encoded.rendered.thinks,
            clock=self._ctx.clock.now_unix_s,
            signing_key=self._limits.signing_key,
        )

    def _choice(
        self, encoded: EncodedRequest, call_id_seed: str, index: int, taken_over: TakeOver | None
    ) -> Choice:
        plan = plan_answer(
            encoded.parsed,
            encoded.rendered,
            is_enforced=encoded.constraint is not None,
            call_id_seed=call_id_seed,
        )
        choice = Choice(
            AnswerReader(self._model.vocabulary, plan),
            DeltaOrder(self._settings.max_early_deltas),
            last_news_s=self._ctx.clock.monotonic_s(),
        )
        if taken_over is not None:
            choice.num_delivered = _at(taken_over.num_tokens, index, 0)
            choice.end_delivered = bool(_at(taken_over.finish_reasons, index, ""))
            choice.order.decode_id = _at(taken_over.decode_ids, index, "")
        return choice

    def _lifetime_s(self, deadline_unix_s: float) -> float:
        if not deadline_unix_s:
            return self._settings.stream_ttl_s
        left_s = deadline_unix_s - self._ctx.clock.now_unix_s()
        return min(self._settings.stream_ttl_s, max(left_s, 0.0) + DEADLINE_GRACE_S)


def _at(values: Sequence[Any], index: int, default: Any) -> Any:
    """The value of one choice; what came from the wire may be shorter."""
    return values[index] if index < len(values) else default
