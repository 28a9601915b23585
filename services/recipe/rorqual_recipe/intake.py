"""From a body to a stream that awaits tokens: CPU work off the loop, prompts published."""

import asyncio
import contextlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rorqual_runtime.errors import NoCapacity, ServingError
from rorqual_runtime.payload import free_payload, put_payload
from rorqual_runtime.service import ServiceContext

from rorqual_recipe.encode import EncodedRequest, encode_request
from rorqual_recipe.event_log import EventLog
from rorqual_recipe.model import ServedModel
from rorqual_recipe.output.choice import ChoiceText
from rorqual_recipe.output.sequence import DeltaOrder
from rorqual_recipe.protocols.base import AnswerFacts, ProtocolAdapter
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.streams import Choice, RequestStream

TICKET_LEASE_S = 30.0
DEADLINE_GRACE_S = 5.0


class Intake:
    """Encodes requests and makes their streams."""

    def __init__(self, ctx: ServiceContext, settings: RecipeSettings, model: ServedModel) -> None:
        self._ctx = ctx
        self._settings = settings
        self._model = model
        self._executor = ThreadPoolExecutor(settings.encode_threads, "encode")
        self._num_waiting = 0

    async def encode(self, body: bytes, adapter: ProtocolAdapter) -> EncodedRequest:
        """Short bodies here and now, long ones on a thread.

        Raises: RequestRefused; NoCapacity when too many long ones wait already.
        """

        def work() -> EncodedRequest:
            return encode_request(
                body,
                adapter,
                self._model,
                default_max_tokens=self._settings.default_max_tokens,
                max_choices=self._settings.max_choices,
            )

        if len(body) <= self._settings.inline_encode_bytes:
            return work()
        if self._num_waiting >= self._settings.max_waiting_encodes:
            raise NoCapacity("too many long prompts are waiting to be encoded")
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._num_waiting -= 1

    async def publish_prompt(self, encoded: EncodedRequest) -> Any:
        """The prompt as a payload that all choices share; readers keep it. Raises: NoCapacity."""
        return await put_payload(self._ctx.tensors, encoded.prompt, lease_s=TICKET_LEASE_S)

    def renew(self, prompts: Iterable[Any]) -> None:
        """Keep prompts readable; one whose lease has ended already stays gone."""
        for prompt in prompts:
            if prompt.HasField("ticket"):
                with contextlib.suppress(ServingError):
                    self._ctx.tensors.renew(prompt.ticket, TICKET_LEASE_S)

    def release(self, prompt: Any) -> None:
        """Free a prompt that travels by reference."""
        free_payload(self._ctx.tensors, prompt)

    def make_stream(
        self,
        encoded: EncodedRequest,
        adapter: ProtocolAdapter,
        *,
        request_id: str,
        gateway_id: str,
        deadline_unix_s: float,
        prompt: Any,
    ) -> RequestStream:
        """The stream of a request, which owns the prompt's payload from now on."""
        parsed = encoded.parsed
        writer = adapter.make_writer(self._facts(encoded, request_id), parsed)
        return RequestStream(
            request_id=request_id,
            gateway_id=gateway_id,
            adapter=adapter,
            writer=writer,
            choices=[self._choice(encoded) for _ in range(parsed.num_choices)],
            num_prompt_tokens=encoded.num_prompt_tokens,
            expires_s=self._ctx.clock.monotonic_s() + self._lifetime_s(deadline_unix_s),
            log=EventLog(self._settings.max_event_log_bytes),
            prompt=prompt,
        )

    def _facts(self, encoded: EncodedRequest, request_id: str) -> AnswerFacts:
        model = self._model
        return AnswerFacts(
            request_id=request_id,
            model=model.model_id,
            created_unix_s=int(self._ctx.clock.now_unix_s()),
            system_fingerprint=f"fp_{model.fingerprint[:12]}" if model.fingerprint else None,
            vocabulary=model.vocabulary,
            num_prompt_tokens=encoded.num_prompt_tokens,
        )

    def _choice(self, encoded: EncodedRequest) -> Choice:
        parsed = encoded.parsed
        return Choice(
            ChoiceText(self._model.vocabulary, parsed.stop, logprobs=parsed.sampling.logprobs),
            DeltaOrder(self._settings.max_early_deltas),
            last_news_s=self._ctx.clock.monotonic_s(),
        )

    def _lifetime_s(self, deadline_unix_s: float) -> float:
        if not deadline_unix_s:
            return self._settings.stream_ttl_s
        left_s = deadline_unix_s - self._ctx.clock.now_unix_s()
        return min(self._settings.stream_ttl_s, max(left_s, 0.0) + DEADLINE_GRACE_S)
