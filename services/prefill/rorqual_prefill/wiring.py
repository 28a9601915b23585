"""How the parts of a prefill instance are put together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from rorqual_engine.errors import EngineError
from rorqual_engine.expert_ranks import open_served_model
from rorqual_engine.huge_pages import move_to_huge_pages
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_policy.step_cost import StepCost
from rorqual_policy.window_value import choose_window_victims
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.decision_log import log_decision
from rorqual_runtime.errors import ServingError, Unsupported
from rorqual_runtime.logs import get_logger, log_duration
from rorqual_runtime.process import end_at_once
from rorqual_runtime.service import ServiceContext
from rorqual_runtime.windows import WindowExchange

from rorqual_prefill import convert
from rorqual_prefill.begin import PrefixStage
from rorqual_prefill.calibration import calibrated_cost
from rorqual_prefill.compute import PrefillEngine
from rorqual_prefill.fetch_wiring import open_fetcher, urgency_s
from rorqual_prefill.fleet import BusDecodeFleet
from rorqual_prefill.hit_counts import HitCounts
from rorqual_prefill.image_rows import ImageFetcher
from rorqual_prefill.job import Job
from rorqual_prefill.page_io import PageIo
from rorqual_prefill.pages import PageGate
from rorqual_prefill.pipeline import PrefillPipeline
from rorqual_prefill.room import RoomKeeper, WaitingWork
from rorqual_prefill.service import PrefillPorts, PrefillService
from rorqual_prefill.settings import PrefillSettings
from rorqual_prefill.swap_in import SwapIn
from rorqual_prefill.warm_up import warm_up

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PrefillInstance:
    """A prefill instance that serves, with the parts its tests and its shutdown look at."""

    service: PrefillService
    room: RoomKeeper
    engine: PrefillEngine
    cache: PagedKvCache
    counts: HitCounts

    async def drain(self, timeout_s: float) -> None:
        """See `PrefillService.drain`."""
        await self.service.drain(timeout_s)


@asynccontextmanager
async def open_prefill(
    ctx: ServiceContext, settings: PrefillSettings, model: CausalModel | None = None
) -> AsyncIterator[PrefillInstance]:
    """Load, warm up, pull; mark the context ready. Everything is closed after the block.

    model: an already loaded model; by default settings.model_dir is loaded.
    """
    async with AsyncExitStack() as stack:
        if model is None:
            with log_duration(log, "weights loaded"):
                model = await asyncio.to_thread(_load, settings, stack)
        cache = model.new_cache(settings.num_pages, num_windows=settings.max_active)
        with log_duration(log, "kernels warm"):
            await asyncio.to_thread(warm_up, model, cache)
        await asyncio.to_thread(move_to_huge_pages, model.device)
        with log_duration(log, "step costs known"):
            cost = await asyncio.to_thread(
                calibrated_cost, ctx.settings.home, model, cache, settings.calibrate_s
            )
        instance = await _build(ctx, settings, model, cache, cost, stack)
        await _serve(ctx, settings, instance, model)
        ctx.mark_ready()
        yield instance


def _load(settings: PrefillSettings, stack: AsyncExitStack) -> CausalModel:
    """Raises: Unsupported, which ends the start with the engine's one line."""
    try:
        opened = open_served_model(
            settings, on_lost=lambda lost: end_at_once(str(lost)), on_decision=log_decision
        )
        return stack.enter_context(opened)
    except EngineError as error:
        raise Unsupported(str(error)) from error


async def _build(
    ctx: ServiceContext,
    settings: PrefillSettings,
    model: CausalModel,
    cache: PagedKvCache,
    cost: StepCost | None,
    stack: AsyncExitStack,
) -> PrefillInstance:
    """Make the parts; each is closed by the stack before those it uses."""
    windows = await _open_windows(ctx, settings, model, cache)
    forget = partial(_forget, ctx.bus, model.fingerprint)
    waiting = WaitingWork(ctx.clock)
    await ctx.bus.subscribe_loads(subjects.loads_of("router"), waiting.on_load)
    engine = PrefillEngine(
        model,
        cache,
        step_tokens=settings.step_tokens,
        step_limit_s=settings.step_limit_s,
        policy=settings.policy,
        cost=cost,
        waiting=waiting.now,
    )
    engine.start()
    stack.push_async_callback(engine.close)
    page_io, gate = PageIo(cache), PageGate(cache)
    counts = HitCounts()
    fetcher = await open_fetcher(ctx, settings, model, engine, counts, stack)
    swap_in = SwapIn(page_io, counts)
    stack.push_async_callback(asyncio.to_thread, swap_in.close)
    pipeline = PrefillPipeline(
        model=model,
        page_io=page_io,
        engine=engine,
        gate=gate,
        prefix=PrefixStage(
            model,
            cache,
            fetcher,
            swap_in,
            windows,
            forget,
            partial(urgency_s, engine, ctx.clock),
            counts,
            ctx.tracer,
        ),
        fleet=BusDecodeFleet(ctx.bus, settings.place_timeout_s, settings.handover_timeout_s),
        images=ImageFetcher(ctx.bus, ctx.tensors, settings.max_image_rows),
        windows=windows,
        tensors=ctx.tensors,
        on_progress=lambda: service.room_changed.set(),
        arena_bytes=ctx.settings.shm_bytes,
        clock=ctx.clock,
        tracer=ctx.tracer,
    )
    ports = PrefillPorts(
        serve=pipeline.serve,
        publish_failure=partial(_publish_failure, ctx),
        release_lease=partial(_release_lease, ctx.bus),
        tell_untried=lambda job, stream_seq: room.tell_untried(job, stream_seq),
        num_replayed=model.num_replayed,
    )
    service = PrefillService(ports, gate, settings, ctx.clock)
    room = RoomKeeper(
        ctx, service, settings, lambda: engine.assumed_cost, running_s=engine.step_left_s
    )
    return PrefillInstance(service, room, engine, cache, counts)


async def _open_windows(
    ctx: ServiceContext, settings: PrefillSettings, model: CausalModel, cache: PagedKvCache
) -> WindowExchange:
    windows = WindowExchange(
        ctx,
        model.fingerprint,
        snapshot_bytes=model.kv_layout.snapshot_bytes,
        keep_s=settings.window_keep_s,
        max_bytes=settings.window_keep_bytes,
        choose_victims=choose_window_victims,
    )
    if cache.num_windows:
        await windows.serve()
    return windows


async def _serve(
    ctx: ServiceContext, settings: PrefillSettings, instance: PrefillInstance, model: CausalModel
) -> None:
    service = instance.service
    ctx.report_load(lambda report: convert.fill_load(report, _load_facts(instance, model)))
    await ctx.bus.subscribe(subjects.cancel(), convert.CancelMessage, service.on_cancel)
    await ctx.bus.serve(
        subjects.prefill_assign(ctx.instance_id),
        convert.AssignmentMessage,
        convert.AssignmentReplyMessage,
        instance.room.on_assignment,
        name="assign",
    )
    ctx.track(instance.room.run())


def _load_facts(instance: PrefillInstance, model: CausalModel) -> convert.LoadFacts:
    return convert.LoadFacts(
        num_active_requests=instance.service.num_active,
        num_used_pages=instance.cache.num_used,
        num_total_pages=instance.cache.num_pages,
        num_used_windows=instance.cache.num_used_windows,
        num_total_windows=instance.cache.num_windows,
        num_replayed_tokens=model.num_replayed(model.max_context_tokens),
        queued_tokens=instance.service.num_queued_tokens,
        tokens_per_s=instance.engine.tokens_per_s,
        capacity_tokens_per_s=instance.engine.capacity_tokens_per_s,
        model_fingerprint=model.fingerprint,
        max_context_tokens=model.max_context_tokens,
        hit_counts=instance.counts,
        experts=model.expert_loads,
        num_cancelled=instance.service.cancelled.num_by_phase,
    )


async def _publish_failure(ctx: ServiceContext, job: Job, error: ServingError) -> None:
    batch = convert.failure_to_wire(
        job, error, sender_id=ctx.instance_id, incarnation=ctx.incarnation
    )
    await ctx.bus.publish(subjects.recipe_tokens(job.recipe_id), batch)


async def _release_lease(bus: Bus, job: Job) -> None:
    if job.kv_lease_id:
        with contextlib.suppress(ServingError):  # it expires by itself
            await bus.publish(subjects.kvmeta_release(), convert.release_to_wire(job.kv_lease_id))


async def _forget(bus: Bus, fingerprint: str, keys: list[bytes], reason: str) -> None:
    log.warning("kvmeta promised blocks in vain", extra={"num": len(keys), "reason": reason})
    with contextlib.suppress(ServingError):  # the next reader will say so again
        await bus.publish(
            subjects.kvmeta_forget(), convert.forget_to_wire(fingerprint, keys, reason)
        )
