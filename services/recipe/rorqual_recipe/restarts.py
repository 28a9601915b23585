"""Generations whose decode instance was lost: submitted again, behind the tokens that are here."""

import asyncio
from collections.abc import Callable
from typing import Any

from rorqual_policy.runs import run_after_loss
from rorqual_runtime import subjects
from rorqual_runtime.errors import Cancelled, ErrorCode, ServingError, Unavailable
from rorqual_runtime.logs import get_logger
from rorqual_runtime.patience import AGAIN_S
from rorqual_runtime.payload import free_payload, get_payload, put_payload
from rorqual_runtime.service import ServiceContext

from rorqual_recipe import convert
from rorqual_recipe.intake import TICKET_LEASE_S
from rorqual_recipe.stream_table import StreamTable
from rorqual_recipe.streams import RequestStream

log = get_logger(__name__)

MAX_LOSSES = 8
"""Of one generation; it may be what kills them."""
SUBMIT_TIMEOUT_S = 10.0
SUBMIT_BUDGET_S = 30.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
FENCE_INTERVAL_S = 1.0

LOST_CODES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DRAINING})
"""Errors of a decode instance that another one would not have."""
_RETRIED = frozenset({ErrorCode.NO_CAPACITY, ErrorCode.UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED})


class Restarts:
    """The stream is the log of its tokens: prompt and tokens so far make a new prompt, and noise
    goes by position, so the answer goes on as it would have."""

    def __init__(
        self,
        ctx: ServiceContext,
        streams: StreamTable,
        on_failed: Callable[[RequestStream, ServingError], None],
    ) -> None:
        self._ctx = ctx
        self._streams = streams
        self._on_failed = on_failed
        self.num_restarted = 0
        """Since the start."""

    def restart(self, stream: RequestStream, index: int, cause: ServingError) -> None:
        """Have a choice go on elsewhere; what still comes from its last run is not heard."""
        choice = stream.choices[index]
        if not self._is_wanted(stream, index):
            return
        if choice.num_losses >= MAX_LOSSES:
            lost = Unavailable(f"the generation was lost {MAX_LOSSES} times: {cause.message}")
            self._on_failed(stream, lost)
            return
        choice.num_losses += 1
        self.num_restarted += 1
        lost_id = choice.order.decode_id
        run = run_after_loss(choice.order.run, stream.take_over)
        choice.order.begin_run(run)
        facts = {"request_id": stream.request_id, "choice": index, "run": run, "from": lost_id}
        log.warning("a generation goes on elsewhere: %s", cause.message, extra=facts)
        self._ctx.track(self._submit(stream, index, run))

    def fence(self, stream: RequestStream, index: int, decode_id: str) -> None:
        """An instance still runs what goes on elsewhere: tell it so."""
        choice, now_s = stream.choices[index], self._ctx.clock.monotonic_s()
        if not subjects.is_token(decode_id) or now_s < choice.next_fence_s:
            return
        choice.next_fence_s = now_s + FENCE_INTERVAL_S
        request = convert.drop_runs(stream.request_id, index, before_run=choice.order.run)
        self._ctx.track(self._send_fence(decode_id, request))

    async def _send_fence(self, decode_id: str, request: convert.DropRunsRequest) -> None:
        try:
            await self._ctx.bus.publish(subjects.decode_drop_runs(decode_id), request)
        except ServingError:
            log.info("not fenced", extra={"decode_id": decode_id})  # its next token tries again

    async def _submit(self, stream: RequestStream, index: int, run: int) -> None:
        try:
            await self._ask(stream, index, run)
        except Cancelled:
            return
        except ServingError as err:
            if self._is_last(stream, index, run):
                self._on_failed(stream, err)

    async def _generation(self, stream: RequestStream, index: int, run: int) -> convert.Generation:
        """Its prompt is prompt and output so far. Raises: ServingError."""
        output = stream.choices[index].token_ids.tobytes()
        source = stream.source
        prompt = stream.prompts[source.prompt_indices[index]]
        tensors = self._ctx.tensors
        data = await get_payload(tensors, prompt, keep=True) + output
        payload = await put_payload(tensors, data, lease_s=TICKET_LEASE_S)
        if not self._is_last(stream, index, run):
            free_payload(tensors, payload)
            raise Cancelled()
        self._keep(stream, index, payload)
        return convert.restarted(source.generations[index], payload, data, len(output), run)

    def _keep(self, stream: RequestStream, index: int, payload: Any) -> None:
        """Freed with the stream's other prompts, or by the next restart of this choice: nobody
        runs the former one any more."""
        choice = stream.choices[index]
        if (former := choice.restart_prompt) is not None:
            stream.prompts = [prompt for prompt in stream.prompts if prompt is not former]
            free_payload(self._ctx.tensors, former)
        stream.prompts.append(payload)
        choice.restart_prompt = payload

    async def _ask(self, stream: RequestStream, index: int, run: int) -> None:
        """Until a router has taken it. Asked twice it is queued once. Raises: ServingError."""
        clock = self._ctx.clock
        until_s, pause_s = clock.monotonic_s() + SUBMIT_BUDGET_S, FIRST_PAUSE_S
        submission: convert.SubmitRequest | None = None
        while True:
            try:
                if submission is None:
                    generation = await self._generation(stream, index, run)
                    submission = convert.submission_of(generation)
                await self._ctx.bus.request(
                    subjects.router_submit(),
                    submission,
                    convert.SubmitReply,
                    timeout_s=SUBMIT_TIMEOUT_S,
                    outlasts_outages=True,
                    again_s=AGAIN_S,
                )
                return
            except ServingError as err:
                is_final = err.code not in _RETRIED or clock.monotonic_s() + pause_s > until_s
                if is_final or not self._is_last(stream, index, run):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _is_wanted(self, stream: RequestStream, index: int) -> bool:
        current = self._streams.get(stream.request_id) is stream
        return current and not stream.choices[index].is_finished

    def _is_last(self, stream: RequestStream, index: int, run: int) -> bool:
        """It is wanted, and not started once more meanwhile."""
        return self._is_wanted(stream, index) and stream.choices[index].order.run == run
