"""Router and decode as recipe and gateway see them: accepts generations, plays back tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rorqual_proto.v1 import decode_pb2, generation_pb2, router_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus, MessageContext
from rorqual_runtime.errors import NotFound, ServingError, error_to_wire
from rorqual_runtime.settings import RuntimeSettings

DECODE_ID = "decode-stub"


@dataclass
class Playback:
    """What one generation answers. lost: indices of deltas that are never published."""

    deltas: Sequence[Sequence[int]]
    finish: decode_pb2.FinishReason = decode_pb2.FINISH_REASON_STOP
    pause_s: float = 0.0
    hold_s: float = 0.0
    num_cached_tokens: int = 0
    error: ServingError | None = None
    lost: frozenset[int] = frozenset()
    logprobs: bool = False


@dataclass
class StubBackend:
    """One stub for router and decode; `play` decides each generation's answer."""

    bus: Bus
    play: Callable[[generation_pb2.Generation], Playback]
    submit_error: ServingError | None = None
    submitted: list[generation_pb2.Generation] = field(default_factory=list)
    cancels: list[tuple[float, router_pb2.CancelRequest]] = field(default_factory=list)
    resends: list[decode_pb2.ResendRequest] = field(default_factory=list)
    incarnation: int = 1
    num_played: int = 0
    """Deltas made so far, lost ones included."""
    _log: dict[tuple[str, int], list[decode_pb2.TokenDelta]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        await self.bus.subscribe(subjects.cancel(), router_pb2.CancelRequest, self._on_cancel)
        await self.bus.serve(
            subjects.router_submit(),
            router_pb2.SubmitRequest,
            router_pb2.SubmitReply,
            self._on_submit,
            name="submit",
        )
        await self.bus.serve(
            subjects.decode_resend(DECODE_ID),
            decode_pb2.ResendRequest,
            decode_pb2.ResendReply,
            self._on_resend,
            name="resend",
        )

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self) -> None:
        """What was submitted, cancelled and resent so far; tokens can still be fetched."""
        for what in (self.submitted, self.cancels, self.resends):
            what.clear()

    async def _on_cancel(self, request: router_pb2.CancelRequest, context: MessageContext) -> None:
        self.cancels.append((time.monotonic(), request))

    async def _on_submit(
        self, request: router_pb2.SubmitRequest, context: MessageContext
    ) -> router_pb2.SubmitReply:
        if self.submit_error is not None:
            raise self.submit_error
        for generation in request.generations:
            self.submitted.append(generation)
            task = asyncio.create_task(self._generate(generation, self.play(generation)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return router_pb2.SubmitReply(submitted=router_pb2.Submitted(bucket="lt16k"))

    async def _on_resend(
        self, request: decode_pb2.ResendRequest, context: MessageContext
    ) -> decode_pb2.ResendReply:
        self.resends.append(request)
        log = self._log.get((request.request_id, request.choice_index))
        if log is None:
            raise NotFound("no such generation")
        merged = decode_pb2.TokenDelta(
            request_id=request.request_id,
            choice_index=request.choice_index,
            seq=request.from_seq,
        )
        tokens = [token for delta in log for token in delta.token_ids]
        merged.token_ids.extend(tokens[request.from_seq :])
        if log:
            merged.run = log[-1].run
            merged.finish_reason = log[-1].finish_reason
            merged.num_cached_tokens = log[-1].num_cached_tokens
        return decode_pb2.ResendReply(delta=merged)

    async def _generate(self, generation: generation_pb2.Generation, playback: Playback) -> None:
        await asyncio.sleep(playback.hold_s)
        log = self._log[generation.request_id, generation.choice_index] = []
        seq = 0
        for index, token_ids in enumerate(playback.deltas):
            is_last = index + 1 == len(playback.deltas) and playback.error is None
            delta = decode_pb2.TokenDelta(
                request_id=generation.request_id,
                choice_index=generation.choice_index,
                seq=seq,
                run=generation.run,
                token_ids=token_ids,
                logprobs=_logprobs(token_ids) if playback.logprobs else (),
                finish_reason=playback.finish if is_last else decode_pb2.FINISH_REASON_UNSPECIFIED,
                num_prompt_tokens=generation.num_prompt_tokens,
                num_cached_tokens=playback.num_cached_tokens,
            )
            seq += len(token_ids)
            log.append(delta)
            if index not in playback.lost:
                await self.publish(generation.reply.recipe_id, delta)
            self.num_played += 1
            await asyncio.sleep(playback.pause_s)
        if playback.error is not None:
            await self.publish(
                generation.reply.recipe_id,
                decode_pb2.TokenDelta(
                    request_id=generation.request_id,
                    choice_index=generation.choice_index,
                    seq=seq,
                    run=generation.run,
                    error=error_to_wire(playback.error),
                ),
            )

    async def publish(self, recipe_id: str, *deltas: decode_pb2.TokenDelta) -> None:
        batch = decode_pb2.TokenBatch(
            decode_id=DECODE_ID, incarnation=self.incarnation, deltas=deltas
        )
        await self.bus.publish(subjects.recipe_tokens(recipe_id), batch)


def _logprobs(token_ids: Sequence[int]) -> list[decode_pb2.TokenLogprobs]:
    return [
        decode_pb2.TokenLogprobs(
            token_id=token, logprob=-0.5, top_ids=[token, token + 1], top_logprobs=[-0.5, -2.0]
        )
        for token in token_ids
    ]


@asynccontextmanager
async def stub_backend(
    settings: RuntimeSettings, play: Callable[[generation_pb2.Generation], Playback]
) -> AsyncIterator[StubBackend]:
    """A stub on its own connection."""
    bus = await Bus.connect(settings, "stub", instance_id=DECODE_ID)
    backend = StubBackend(bus, play)
    try:
        await backend.start()
        yield backend
    finally:
        await backend.stop()
        await bus.close()
