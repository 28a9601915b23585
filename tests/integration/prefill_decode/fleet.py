"""Prefill and decode in this process on a real broker, between a recipe that only listens, a router
that places as told and a kvmeta that remembers what it hears."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rorqual_decode.settings import DecodeSettings
from rorqual_decode.wiring import DecodeInstance, open_decode
from rorqual_engine.models import CausalModel
from rorqual_policy import ValueEviction
from rorqual_policy.blocks import block_keys
from rorqual_prefill.settings import PrefillSettings
from rorqual_prefill.wiring import PrefillInstance, open_prefill
from rorqual_proto.v1 import (
    decode_pb2,
    generation_pb2,
    kvmeta_pb2,
    prefill_pb2,
    router_pb2,
    tensor_pb2,
)
from rorqual_router.line_keeper import LineKeeper
from rorqual_router.settings import RouterSettings
from rorqual_runtime import subjects
from rorqual_runtime.blockstore import BlockStore
from rorqual_runtime.bus import Bus
from rorqual_runtime.cancelled import CancelledIds
from rorqual_runtime.clock import WallClock
from rorqual_runtime.errors import NoCapacity
from rorqual_runtime.queue import WorkQueue
from rorqual_runtime.service import ServiceContext, open_service
from rorqual_runtime.settings import RuntimeSettings

from tests.support.waiting import WAIT_S, until

RECIPE_ID = "recipe-test"
NAMESPACE = "tenant"


def make_generation(
    request_id: str,
    token_ids: Sequence[int],
    *,
    max_new_tokens: int = 8,
    choice_index: int = 0,
    num_choices: int = 1,
    deadline_s: float = 60.0,
    cache_ttl_s: int = 0,
    num_output_tokens: int = 0,
    run: int = 0,
    **sampling: object,
) -> generation_pb2.Generation:
    """What recipe would make of a prompt."""
    fields = {"seed": 7, "top_p": 1.0, "max_new_tokens": max_new_tokens, **sampling}
    return generation_pb2.Generation(
        request_id=request_id,
        choice_index=choice_index,
        num_choices=num_choices,
        model="tiny",
        prompt=tensor_pb2.Payload(inline=np.asarray(token_ids, "<i4").tobytes()),
        num_prompt_tokens=len(token_ids),
        sampling=generation_pb2.SamplingParams(**fields),
        cache_namespace=NAMESPACE,
        reply=generation_pb2.ReplyRoute(recipe_id=RECIPE_ID, gateway_id="gateway-test"),
        deadline_unix_s=time.time() + deadline_s,
        cache_ttl_s=cache_ttl_s,
        num_output_tokens=num_output_tokens,
        run=run,
    )


@dataclass
class Received:
    """What the recipe got for one generation."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[decode_pb2.TokenLogprobs] = field(default_factory=list)
    finish_reason: int = 0
    error_code: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    miss_reason: str = ""
    num_repeated: int = 0
    announced: list[tuple[str, int]] = field(default_factory=list)
    """First tokens that prefill told in the name of a decode instance."""
    decode_ids: set[str] = field(default_factory=set)
    runs: list[int] = field(default_factory=list)
    """Each time that another one was heard."""
    first_s: float = 0.0
    last_s: float = 0.0
    has_gap: bool = False

    def take(self, decode_id: str, delta: decode_pb2.TokenDelta) -> None:
        self.decode_ids.add(decode_id)
        if self.runs[-1:] != [delta.run]:
            self.runs.append(delta.run)
        self.has_gap |= delta.seq > len(self.token_ids)
        known = len(self.token_ids) - delta.seq
        self.num_repeated += min(known, len(delta.token_ids))
        self.token_ids.extend(delta.token_ids[known:])
        self.logprobs.extend(delta.logprobs[known:])
        self.last_s = time.monotonic()
        self.first_s = self.first_s or self.last_s
        self.num_prompt_tokens = delta.num_prompt_tokens or self.num_prompt_tokens
        self.num_cached_tokens = delta.num_cached_tokens or self.num_cached_tokens
        self.miss_reason = delta.cache_miss_reason or self.miss_reason
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.error_code = delta.error.code or self.error_code


@dataclass
class Surroundings:
    """Recipe, router and kvmeta as these two services see them."""

    bus: Bus
    queue: WorkQueue
    fingerprint: str
    decode_ids: list[str] = field(default_factory=list)
    received: dict[tuple[str, int], Received] = field(default_factory=dict)
    registered: dict[bytes, kvmeta_pb2.BlockRecord] = field(default_factory=dict)
    forgotten: list[tuple[bytes, str]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    windows: dict[bytes, kvmeta_pb2.WindowNotice] = field(default_factory=dict)
    placements: list[router_pb2.PlaceRequest] = field(default_factory=list)
    _keeping: asyncio.Task[None] | None = None
    may_place: asyncio.Event = field(default_factory=asyncio.Event)
    """Set from the start; placements wait for it."""

    @property
    def exact_keys(self) -> set[bytes]:
        """Registered blocks that stand behind no replay."""
        return {key for key, block in self.registered.items() if not block.provenance}

    async def start(self) -> None:
        self.may_place.set()
        await self.queue.ensure()
        await self.bus.subscribe(
            subjects.recipe_tokens(RECIPE_ID), decode_pb2.TokenBatch, self._on_tokens
        )

    async def start_stubs(self) -> None:
        """Answer in place of router and kvmeta."""
        await self.bus.subscribe(
            subjects.kvmeta_forget(), kvmeta_pb2.ForgetBlocksRequest, self._on_forget
        )
        await self.bus.subscribe(
            subjects.kvmeta_release(), kvmeta_pb2.ReleaseLeaseRequest, self._on_release
        )
        await self.bus.subscribe(
            subjects.window_notices(), kvmeta_pb2.WindowNotice, self._on_window
        )
        await self.bus.serve(
            subjects.kvmeta_register(),
            kvmeta_pb2.RegisterBlocksRequest,
            kvmeta_pb2.RegisterBlocksReply,
            self._on_register,
            name="register",
        )
        self.line = self._line_keeper()
        self._keeping = asyncio.create_task(self.line.run())
        await self.bus.serve(
            subjects.router_place(),
            router_pb2.PlaceRequest,
            router_pb2.PlaceReply,
            self._on_place,
            name="place",
        )

    def _line_keeper(self) -> LineKeeper:
        """The router's own: prefill is given its jobs by it."""
        return LineKeeper(
            self.bus,
            self.queue,
            CancelledIds(),
            WallClock(),
            RouterSettings(),
            identity=("router-test", 1),
            leads=lambda: True,
        )

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    async def _on_tokens(self, batch, _context) -> None:
        for delta in batch.deltas:
            key = (delta.request_id, delta.choice_index)
            received = self.received.setdefault(key, Received())
            if batch.incarnation:
                received.take(batch.decode_id, delta)
            else:
                received.announced += [(batch.decode_id, token) for token in delta.token_ids]

    async def _on_forget(self, request, _context) -> None:
        self.forgotten += [(key, request.reason) for key in request.keys]

    async def _on_release(self, request, _context) -> None:
        self.released.append(request.lease_id)

    async def _on_window(self, notice, _context) -> None:
        self.windows[notice.key] = notice

    def _places(self, keys: Sequence[bytes]) -> list[kvmeta_pb2.WindowPlace]:
        """Who keeps windows behind these blocks."""
        return [
            kvmeta_pb2.WindowPlace(
                num_blocks=number,
                holder_id=notice.holder_id,
                expires_unix_s=notice.expires_unix_s,
                replayed=notice.replayed,
            )
            for number, key in enumerate(keys, start=1)
            if (notice := self.windows.get(key)) is not None
        ]

    async def _on_register(self, request, _context):
        assert request.model_fingerprint == self.fingerprint
        self.registered |= {block.key: block for block in request.blocks}
        return kvmeta_pb2.RegisterBlocksReply(num_registered=len(request.blocks))

    async def _on_place(self, request, _context):
        self.placements.append(request)
        await self.may_place.wait()
        for decode_id in self.decode_ids:
            if decode_id not in request.excluded_ids:
                return router_pb2.PlaceReply(placement=router_pb2.Placement(decode_id=decode_id))
        raise NoCapacity("no decode instance is left")

    async def submit(
        self,
        request_id: str,
        token_ids: Sequence[int],
        *,
        max_new_tokens: int = 8,
        choice_index: int = 0,
        num_choices: int = 1,
        num_matched_blocks: int | None = None,
        exact_only: bool = False,
        deadline_s: float = 60.0,
        msg_id: str | None = None,
        compiled_grammar: tensor_pb2.TensorTicket | None = None,
        **sampling: object,
    ) -> None:
        """Put a job on the queue as the router would."""
        keys = block_keys(token_ids, fingerprint=self.fingerprint, namespace=NAMESPACE)
        matched = num_matched_blocks
        if matched is None:
            matched = next((i for i, k in enumerate(keys) if k not in self.registered), len(keys))
        exact = (i for i, k in enumerate(keys[:matched]) if k not in self.exact_keys)
        job = prefill_pb2.PrefillJob(
            generation=make_generation(
                request_id,
                token_ids,
                max_new_tokens=max_new_tokens,
                choice_index=choice_index,
                num_choices=num_choices,
                deadline_s=deadline_s,
                **sampling,
            ),
            num_matched_blocks=matched,
            num_exact_blocks=next(exact, matched),
            exact_only=exact_only,
            kv_lease_id=f"lease-{request_id}",
            windows=self._places(keys[:matched]),
            submitted_unix_s=time.time(),
            compiled_grammar=compiled_grammar,
        )
        await self.queue.publish(
            subjects.prefill_jobs("default", "lt16k"),
            job,
            msg_id=msg_id or f"{request_id}/{choice_index}",
        )

    async def cancel(self, request_id: str, choice_index: int | None = None) -> None:
        request = router_pb2.CancelRequest(request_id=request_id, choice_index=choice_index)
        await self.bus.publish(subjects.cancel(), request)
        await self.bus.connection.flush()  # what follows arrives behind it

    async def resend(self, request_id: str, choice_index: int = 0) -> decode_pb2.TokenDelta:
        """Everything the first decode instance keeps of a generation. Raises: NotFound."""
        request = decode_pb2.ResendRequest(request_id=request_id, choice_index=choice_index)
        reply = await self.bus.request(
            subjects.decode_resend(self.decode_ids[0]),
            request,
            decode_pb2.ResendReply,
            timeout_s=WAIT_S,
        )
        return reply.delta

    def output(self, request_id: str, choice_index: int = 0) -> Received:
        return self.received.setdefault((request_id, choice_index), Received())

    async def finished(self, request_id: str) -> Received:
        """The output of choice 0 once it has its finish reason."""
        output = self.output(request_id)
        await until(lambda: output.finish_reason != 0, f"{request_id} to finish")
        return output

    async def complete(self, request_id: str, token_ids: Sequence[int], **options) -> Received:
        """Submit and wait for the end."""
        await self.submit(request_id, token_ids, **options)
        return await self.finished(request_id)


@dataclass
class Fleet:
    """Everything of one test."""

    around: Surroundings
    prefill: list[tuple[ServiceContext, PrefillInstance]]
    decode: list[tuple[ServiceContext, DecodeInstance]]

    def held(self) -> dict[str, int]:
        """Whatever is not free; empty when nothing is held anywhere."""
        counts = {}
        for ctx, prefill in self.prefill:
            counts[f"{ctx.instance_id} pages"] = prefill.cache.num_used
            counts[f"{ctx.instance_id} windows"] = prefill.cache.num_used_windows
            counts[f"{ctx.instance_id} tickets"] = ctx.tensors.num_held
            counts[f"{ctx.instance_id} jobs"] = prefill.service.num_active
        for ctx, decode in self.decode:
            counts[f"{ctx.instance_id} pages"] = decode.cache.num_used
            counts[f"{ctx.instance_id} windows"] = decode.cache.num_used_windows
            counts[f"{ctx.instance_id} tickets"] = ctx.tensors.num_held
            counts[f"{ctx.instance_id} generations"] = decode.service.num_active
        return {name: count for name, count in counts.items() if count}

    async def evict(self, store_dir: Path, keys: Sequence[bytes]) -> None:
        """Blocks leave the store, and kvmeta knows."""
        fingerprint = self.around.fingerprint
        drop = kvmeta_pb2.DropBlocksRequest(
            model_fingerprint=fingerprint, packed_keys=b"".join(keys)
        )
        await self.around.bus.publish(subjects.kvmeta_drop(), drop)
        with closing(BlockStore(store_dir, 1 << 30, eviction=ValueEviction())) as store:
            await until(lambda: not any(store.has(fingerprint, key) for key in keys))
        for key in keys:
            del self.around.registered[key]

    async def tokens_arrived(self) -> None:
        """Return once all that decode has sent by now is with the recipe."""
        for ctx, _ in self.decode:
            await ctx.bus.connection.flush()
        await self.around.bus.connection.flush()
        await asyncio.sleep(0.05)  # its handler is next

    async def nothing_held(self) -> None:
        await until(lambda: not self.held(), lambda: f"everything to be free: {self.held()}")
        for _, instance in (*self.prefill, *self.decode):
            instance.cache.check_integrity()


class SlowModel(CausalModel):
    """A model whose every step takes longer, so that a test can act in the middle of one."""

    def __init__(self, model: CausalModel, step_s: float) -> None:
        self._model = model
        self.step_s = step_s
        self.num_steps = 0
        for name in (
            *("fingerprint", "vocab_size", "eos_token_ids", "max_context_tokens"),
            *("kv_layout", "device", "dtype"),
        ):
            setattr(self, name, getattr(model, name))

    def forward(self, chunks, cache):
        time.sleep(self.step_s)
        self.num_steps += 1
        return self._model.forward(chunks, cache)

    def num_replayed(self, num_stored):
        return self._model.num_replayed(num_stored)

    def save_window(self, *args):
        return self._model.save_window(*args)

    def load_window(self, *args):
        self._model.load_window(*args)


@asynccontextmanager
async def running_fleet(
    runtime: RuntimeSettings,
    model: CausalModel,
    model_dir: Path,
    *,
    num_prefill: int = 1,
    num_decode: int = 1,
    prefill: dict[str, object] | None = None,
    decode: dict[str, object] | None = None,
    with_stubs: bool = True,
) -> AsyncIterator[Fleet]:
    """A fleet that serves until the block ends."""
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(runtime, "recipe", instance_id=RECIPE_ID)
        stack.push_async_callback(bus.close)
        around = Surroundings(bus, WorkQueue(bus, ack_wait_s=3.0), model.fingerprint)
        await around.start()
        if with_stubs:
            await around.start_stubs()
            stack.push_async_callback(around.stop)
        fleet = Fleet(around, [], [])
        for number in range(num_decode):
            ctx = await _context(stack, runtime, "decode", number)
            chosen = {"num_pages": 128, **(decode or {})}
            settings = DecodeSettings(model_dir=model_dir, **chosen)
            instance = await stack.enter_async_context(open_decode(ctx, settings, model))
            fleet.decode.append((ctx, instance))
            around.decode_ids.append(ctx.instance_id)
        for number in range(num_prefill):
            ctx = await _context(stack, runtime, "prefill", number)
            settings = PrefillSettings(
                model_dir=model_dir, num_pages=64, calibrate_s=0.0, **(prefill or {})
            )
            instance = await stack.enter_async_context(open_prefill(ctx, settings, model))
            fleet.prefill.append((ctx, instance))
        yield fleet


async def _context(
    stack: AsyncExitStack, runtime: RuntimeSettings, name: str, number: int
) -> ServiceContext:
    settings = runtime.model_copy(update={"instance_id": f"{name}-{number}"})
    return await stack.enter_async_context(open_service(name, settings))
