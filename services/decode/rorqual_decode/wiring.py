"""How the parts of a decode instance are put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rorqual_engine.closing import ClosingVocabulary
from rorqual_engine.errors import EngineError
from rorqual_engine.expert_ranks import open_served_model
from rorqual_engine.grammar import GrammarState, load_tokenizer_info
from rorqual_engine.huge_pages import move_to_huge_pages
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_engine.speculation import Drafter, open_drafter
from rorqual_policy.draft_budget import MOST_GUESSES
from rorqual_policy.provenance import Provenance
from rorqual_policy.window_value import choose_window_victims
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.decision_log import log_decision
from rorqual_runtime.errors import Unsupported
from rorqual_runtime.logs import get_logger, log_duration
from rorqual_runtime.patience import AGAIN_S
from rorqual_runtime.process import end_at_once
from rorqual_runtime.service import ServiceContext
from rorqual_runtime.windows import KeptWindow, WindowExchange

from rorqual_decode import convert
from rorqual_decode.admission import Admitter
from rorqual_decode.block_writer import BlockWriter, StoredBlock
from rorqual_decode.carried_kv import KvMemory
from rorqual_decode.departure import Departures
from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.growth import PageGrowth
from rorqual_decode.load_facts import EngineFacts
from rorqual_decode.mover import Mover
from rorqual_decode.pauses import Pauses
from rorqual_decode.publisher import TokenPublisher
from rorqual_decode.registrar import BlockRegistrar
from rorqual_decode.relay import BlockRelay
from rorqual_decode.running import WindowToKeep
from rorqual_decode.service import DecodeService
from rorqual_decode.settings import DecodeSettings
from rorqual_decode.speculation import Speculation
from rorqual_decode.step_profile import calibrated_profile
from rorqual_decode.step_times import calibrated_step_times
from rorqual_decode.store_wiring import open_store, open_writer, read_page
from rorqual_decode.token_sink import BusTokenSink
from rorqual_decode.warm_up import warm_up

_REGISTER_TIMEOUT_S = 2.0
_COMPILE_TIMEOUT_S = 5.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DecodeInstance:
    """A decode instance that serves, with the parts its tests and its shutdown look at."""

    service: DecodeService
    engine: DecodeEngine
    pauses: Pauses
    cache: PagedKvCache
    writer: BlockWriter
    registrar: BlockRegistrar
    publisher: TokenPublisher
    relay: BlockRelay

    async def drain(self, timeout_s: float) -> None:
        """See `DecodeService.drain`."""
        await self.service.drain(timeout_s)


@asynccontextmanager
async def open_decode(
    ctx: ServiceContext, settings: DecodeSettings, model: CausalModel | None = None
) -> AsyncIterator[DecodeInstance]:
    """Load, warm up, serve; mark the context ready. Everything is closed after the block.

    model: an already loaded model; by default settings.model_dir is loaded.
    """
    async with AsyncExitStack() as stack:
        if model is None:
            with log_duration(log, "weights loaded"):
                model = await asyncio.to_thread(_load, settings, stack)
        cache = model.new_cache(settings.num_pages, num_windows=settings.num_windows)
        drafter = _open_drafter(settings, model, cache)
        with log_duration(log, "kernels warm"):
            await asyncio.to_thread(warm_up, model, cache)
        await asyncio.to_thread(move_to_huge_pages, model.device)
        home = ctx.settings.home
        speculation = await asyncio.to_thread(_speculation, settings, home, model, cache, drafter)
        instance = await _build(ctx, settings, model, cache, drafter, speculation, stack)
        await _serve(ctx, instance, model)
        ctx.mark_ready()
        yield instance


def _load(settings: DecodeSettings, stack: AsyncExitStack) -> CausalModel:
    """Raises: Unsupported, which ends the start with the engine's one line."""
    try:
        opened = open_served_model(
            settings, on_lost=lambda lost: end_at_once(str(lost)), on_decision=log_decision
        )
        return stack.enter_context(opened)
    except EngineError as error:
        raise Unsupported(str(error)) from error


def _open_drafter(settings: DecodeSettings, model: CausalModel, cache: PagedKvCache) -> Drafter:
    """Raises: Unsupported."""
    try:
        return open_drafter(settings.drafter, model, cache, settings.num_guesses)
    except EngineError as error:
        raise Unsupported(str(error)) from error


def _speculation(
    settings: DecodeSettings, home: Path, model: CausalModel, cache: PagedKvCache, drafter: Drafter
) -> Speculation:
    """Blocks where the schedule needs times of steps that nobody has measured yet."""
    if not drafter.num_guesses or settings.guess_schedule == "fixed":
        return Speculation(drafter)
    profile = calibrated_profile(home, model, cache)
    return Speculation(drafter, settings.guess_schedule, profile)


async def _build(
    ctx: ServiceContext,
    settings: DecodeSettings,
    model: CausalModel,
    cache: PagedKvCache,
    drafter: Drafter,
    speculation: Speculation,
    stack: AsyncExitStack,
) -> DecodeInstance:
    """Make the parts; each is closed by the stack before those it uses."""
    loop = asyncio.get_running_loop()
    registrar = BlockRegistrar(
        partial(_register, ctx.bus, model.fingerprint),
        max_batch=settings.register_batch_blocks,
        max_backlog=settings.register_backlog_blocks,
    )
    on_stored = partial(_post, loop, registrar.add)
    store = await open_store(ctx, settings, model, stack)
    writer = open_writer(settings, model, cache, store, on_stored, stack)
    publisher = TokenPublisher(BusTokenSink(ctx.bus, ctx.instance_id, ctx.incarnation))
    admitter = Admitter(
        model,
        cache,
        ctx.tensors,
        read_grammar=await asyncio.to_thread(_grammar_reader, settings, model),
        recompile=partial(_recompile, ctx.bus),
        open_memory=drafter.open,
        growth_tokens=settings.growth_tokens,
    )
    stack.callback(admitter.close)
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
    growth = PageGrowth(
        cache,
        num_ahead=cache.layout.num_pages(settings.growth_tokens),
        num_guesses=MOST_GUESSES,  # a grammar's forced text counts, too
    )
    engine = DecodeEngine(
        model,
        cache,
        writer,
        on_output=lambda out: _post(loop, service.on_emissions, out),
        on_window=lambda kept: _post(loop, partial(_keep_window, windows, model), kept),
        speculation=speculation,
        step_times=await asyncio.to_thread(calibrated_step_times, ctx.settings.home, model),
        growth=growth,
    )
    memory = KvMemory(model, cache, partial(read_page, cache))
    mover = Mover(ctx.bus, ctx.instance_id, model, ctx.tensors, arena_bytes=ctx.settings.shm_bytes)
    service = DecodeService(
        engine=engine,
        admitter=admitter,
        publisher=publisher,
        departures=Departures(engine, mover, memory),
        writer=writer,
        settings=settings,
        clock=ctx.clock,
        tracer=ctx.tracer,
    )
    pauses = Pauses(
        engine,
        growth,
        memory,
        entries=lambda: service.entries,
        give_up=lambda entry: service.give_up(entry),
        max_bytes=settings.paused_bytes,
    )
    engine.start()
    stack.push_async_callback(asyncio.to_thread, engine.close)
    relay = BlockRelay(ctx, store, model.fingerprint, model.kv_layout.page_bytes)
    return DecodeInstance(service, engine, pauses, cache, writer, registrar, publisher, relay)


async def _serve(ctx: ServiceContext, instance: DecodeInstance, model: CausalModel) -> None:
    service, bus = instance.service, ctx.bus
    ctx.track(instance.publisher.run())
    ctx.track(instance.registrar.run())
    ctx.track(service.sweep_forever())
    ctx.track(instance.pauses.run())
    bus.connection.on_reconnect(service.on_reconnect)
    ctx.report_load(partial(_fill_load, instance, model))
    await instance.relay.serve()
    await bus.subscribe(subjects.cancel(), convert.CancelMessage, service.on_cancel)
    await bus.subscribe(
        subjects.decode_drop_runs(ctx.instance_id), convert.DropRunsMessage, service.on_drop_runs
    )
    await bus.subscribe(subjects.decode_repeat(), convert.RepeatMessage, service.on_repeat)
    await bus.serve(
        subjects.decode_resend(ctx.instance_id),
        convert.ResendMessage,
        convert.ResendReplyMessage,
        service.on_resend,
        name="resend",
    )
    await bus.serve(
        subjects.decode_handover(ctx.instance_id),
        convert.HandoverMessage,
        convert.HandoverReplyMessage,
        service.on_handover,
        name="handover",
    )


def _keep_window(windows: WindowExchange, model: CausalModel, window: WindowToKeep) -> None:
    saved_tokens = model.num_replayed(window.num_tokens)
    is_replayed = window.provenance is Provenance.REPLAYED
    windows.keep(window.key, KeptWindow(window.snapshot, is_replayed, saved_tokens))


def _fill_load(instance: DecodeInstance, model: CausalModel, report: Any) -> None:
    facts = instance.service.load_facts()
    convert.fill_load(report, facts, _engine_facts(model, instance.cache))
    convert.fill_pauses(report, instance.pauses.facts())
    convert.fill_relay(report, instance.relay.facts())


def _engine_facts(model: CausalModel, cache: PagedKvCache) -> EngineFacts:
    return EngineFacts(
        num_used_pages=cache.num_used,
        num_total_pages=cache.num_pages,
        num_used_windows=cache.num_used_windows,
        num_total_windows=cache.num_windows,
        model_fingerprint=model.fingerprint,
        max_context_tokens=model.max_context_tokens,
        experts=model.expert_loads,
    )


def _grammar_reader(settings: DecodeSettings, model: CausalModel) -> Any:
    vocabulary = load_tokenizer_info(settings.model_dir, model.vocab_size, model.eos_token_ids)
    return partial(
        GrammarState.from_serialized,
        tokenizer_info=vocabulary,
        closing=ClosingVocabulary(vocabulary),
    )


async def _register(bus: Bus, fingerprint: str, blocks: Sequence[StoredBlock]) -> None:
    await bus.request(
        subjects.kvmeta_register(),
        convert.registration_to_wire(fingerprint, blocks),
        convert.RegisterReplyMessage,
        timeout_s=_REGISTER_TIMEOUT_S,
    )


async def _recompile(bus: Bus, offer: convert.HandoverOffer) -> Any:
    reply = await bus.request(
        subjects.grammar_compile(),
        convert.compile_to_wire(offer.spec, offer.constraint),
        convert.CompileReplyMessage,
        timeout_s=_COMPILE_TIMEOUT_S,
        again_s=AGAIN_S,
    )
    return reply.compiled.grammar


def _post(loop: asyncio.AbstractEventLoop, function: Any, argument: Any) -> None:
    """Call on the loop from another thread; nothing when the loop is gone."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, argument)
