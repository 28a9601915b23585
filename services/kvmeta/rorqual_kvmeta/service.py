"""Handlers of kvmeta: which prefix blocks exist. A hint, never a proof."""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

from opentelemetry import trace
from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.errors import Unavailable
from rorqual_runtime.logs import get_logger
from rorqual_runtime.redis_link import RedisLink, StoreAway
from rorqual_runtime.service import ServiceContext

from rorqual_kvmeta import truth
from rorqual_kvmeta.contents import FirstBlocks
from rorqual_kvmeta.convert import (
    BlockEvents,
    ClearBlocksReply,
    ClearBlocksRequest,
    ForgetBlocksRequest,
    IndexFacts,
    LoadReport,
    MatchReply,
    MatchRequest,
    RegisterBlocksReply,
    RegisterBlocksRequest,
    ReleaseLeaseRequest,
    WindowNotice,
    asked_keys,
    blocks_from_wire,
    clear_from_wire,
    cleared_to_wire,
    contents_from_wire,
    fill_load,
    fingerprint_from_wire,
    forget_from_wire,
    match_to_wire,
    place_from_wire,
    registered_to_wire,
)
from rorqual_kvmeta.events import EventPublisher, PeerProgress
from rorqual_kvmeta.index import BlockIndex
from rorqual_kvmeta.leases import Leases
from rorqual_kvmeta.matching import Matcher
from rorqual_kvmeta.mirror import IndexMirror
from rorqual_kvmeta.records import (
    Keys,
    State,
    StoredBlock,
    from_events,
    record_keys,
    records_of,
    state_after,
    states,
)
from rorqual_kvmeta.settings import KvmetaSettings
from rorqual_kvmeta.stores import StoreNotices
from rorqual_kvmeta.upkeep import Upkeep
from rorqual_kvmeta.window_places import WindowPlaces

QUEUE = "q"

log = get_logger(__name__)


class KvmetaService:
    """Matches from the local index; all changes go to Redis, to the index, and to all instances."""

    def __init__(self, ctx: ServiceContext, link: RedisLink, settings: KvmetaSettings) -> None:
        self._ctx = ctx
        self._clock = ctx.clock
        self._link = link
        self._settings = settings
        self._lifetimes = settings.lifetimes()
        self.index = BlockIndex()
        self.mirror = IndexMirror(
            self.index,
            link,
            ctx.clock,
            timeout_s=settings.redis_write_timeout_s,
            memory_s=settings.expired_memory_s,
            pause_s=settings.resync_pause_s,
            max_pending=settings.max_pending_blocks,
        )
        self._leases = Leases(settings.lease_s, ctx.clock)
        self.upkeep = Upkeep(
            ctx.instance_id,
            self.index,
            link,
            self._leases,
            ctx.clock,
            self._evict,
            settings.upkeep_params(),
        )
        self._stores = StoreNotices(ctx.bus)
        self._events = EventPublisher(ctx, settings.heartbeat_s)
        self._peers = PeerProgress()
        self._first_blocks = FirstBlocks(settings.max_first_blocks)
        self._windows = WindowPlaces(settings.max_windows)
        self.matcher = Matcher(
            self.index,
            self.mirror,
            link,
            self._leases,
            self._first_blocks,
            self._events.publish,
            ctx.clock,
            ctx.tracer,
            touch_share=settings.touch_share,
        )
        self._num_active = 0

    @property
    def link_is_up(self) -> bool:
        """Whether Redis answered when it was last asked."""
        return self._link.is_up

    async def start(self) -> None:
        """Serve, with Redis or without, while the index is being loaded."""
        ctx, bus = self._ctx, self._ctx.bus
        await bus.subscribe(subjects.kvmeta_events(), BlockEvents, self.on_events)
        await bus.subscribe(subjects.window_notices(), WindowNotice, self.on_window)
        bus.connection.on_reconnect(self._on_reconnect)
        await self._link.connect()
        self.mirror.request("start")
        ctx.track(self.mirror.run())
        ctx.track(self._link.keep_up(self._on_redis_return))
        ctx.track(self._events.beat_forever())
        ctx.track(self._tend_forever())
        ctx.track(self._sweep_forever())
        ctx.report_load(self._fill_load)
        await bus.subscribe(
            subjects.kvmeta_forget(), ForgetBlocksRequest, self.on_forget, queue=QUEUE
        )
        await bus.subscribe(
            subjects.kvmeta_release(), ReleaseLeaseRequest, self.on_release, queue=QUEUE
        )
        await bus.serve(
            subjects.kvmeta_register(),
            RegisterBlocksRequest,
            RegisterBlocksReply,
            self.on_register,
            name="register",
        )
        await bus.serve(
            subjects.kvmeta_clear(),
            ClearBlocksRequest,
            ClearBlocksReply,
            self.on_clear,
            name="clear",
        )
        await bus.serve(
            subjects.kvmeta_match(), MatchRequest, MatchReply, self.on_match, name="match"
        )
        ctx.mark_ready()

    async def drain(self, timeout_s: float) -> None:
        """Hand late registrations over if Redis takes them; nothing else is held here."""
        await self._flush()

    async def on_match(self, request: MatchRequest, _context: MessageContext) -> MatchReply:
        fingerprint = fingerprint_from_wire(request.model_fingerprint)
        keys = asked_keys(request)
        self._num_active += 1
        model = self._stores.learn(fingerprint)
        try:
            match = await self.matcher.match(model, keys, exact_only=request.exact_only)
        finally:
            self._num_active -= 1
        trace.get_current_span().set_attributes(
            {
                "rorqual.num_blocks": len(keys),
                "rorqual.num_matched_blocks": match.num_blocks,
                "rorqual.miss_reason": match.miss_reason,
            }
        )
        lease = self._leases.new(request.lease_id) if match.num_blocks else None
        self._ctx.track(self.matcher.note(keys, match, lease, request.content_key))
        if lease is not None:
            matched = keys[: match.num_blocks]
            self._ctx.track(self._stores.hold(model, matched, lease.expires_unix_s))
        if lease is None:
            return match_to_wire(match, "", 0.0, ())
        windows = self._windows.behind(keys, match.num_blocks, self._clock.now_unix_s())
        return match_to_wire(match, lease.lease_id, lease.expires_unix_s, windows)

    async def on_window(self, notice: WindowNotice, _context: MessageContext) -> None:
        """Somebody keeps a window state, or keeps it no more."""
        self._windows.note(notice.key, place_from_wire(notice), self._clock.now_unix_s())

    async def on_register(
        self, request: RegisterBlocksRequest, _context: MessageContext
    ) -> RegisterBlocksReply:
        """Blocks that Redis can't take now are kept for later, and not counted in the answer."""
        fingerprint = fingerprint_from_wire(request.model_fingerprint)
        self._stores.learn(fingerprint)
        blocks = blocks_from_wire(request)
        if not blocks:
            return registered_to_wire(0)
        now_unix_s = self._clock.now_unix_s()
        records = self.index.merged(
            records_of(fingerprint, blocks, self._lifetimes, now_unix_s), now_unix_s
        )
        self.mirror.apply(records)
        num_registered = len(blocks)
        try:
            await self.mirror.write(records)
        except StoreAway:
            self.mirror.pending.add(records)
            num_registered = 0
        contents = _contents(blocks)
        for content_key, first_key in contents:
            self._first_blocks.note(content_key, first_key)
        await self._events.publish(records, contents)
        return registered_to_wire(num_registered)

    async def on_forget(self, request: ForgetBlocksRequest, _context: MessageContext) -> None:
        keys = forget_from_wire(request)
        if len(keys):
            num_forgotten = await self._forget(keys, state_after(request.reason))
            extra = {"num_blocks": num_forgotten, "reason": request.reason}
            log.info("blocks forgotten", extra=extra)

    async def on_release(self, request: ReleaseLeaseRequest, _context: MessageContext) -> None:
        try:
            await self._link.call(lambda redis: self._leases.release(redis, request.lease_id))
        except StoreAway:
            self._leases.owe_release(request.lease_id)

    async def on_clear(
        self, request: ClearBlocksRequest, _context: MessageContext
    ) -> ClearBlocksReply:
        """Raises: Unavailable when Redis is away: then it would all come back."""
        model, tenant = clear_from_wire(request)
        try:
            num_cleared = await self.mirror.clear(model, tenant, self._stores.drop)
        except StoreAway as error:
            raise Unavailable("redis is away") from error
        await self._events.publish_clear(request)
        await self.mirror.forget(model, tenant)
        log.warning("blocks cleared", extra={"num_blocks": num_cleared})
        return cleared_to_wire(num_cleared)

    async def on_events(self, message: BlockEvents, _context: MessageContext) -> None:
        """What another instance has changed."""
        if message.publisher_id == self._ctx.instance_id:
            return
        now_s = self._clock.monotonic_s()
        if not self._peers.observe(message.publisher_id, message.incarnation, message.seq, now_s):
            self.mirror.request("events were missed")
        if message.records:
            records = from_events(message.records)
            self.mirror.apply(records)
            # A late registration of ours must not bring back what another has found gone since.
            self.mirror.pending.forget(record_keys(records[states(records) != State.LIVE]))
        for content_key, first_key in contents_from_wire(message):
            self._first_blocks.note(content_key, first_key)
        if message.HasField("clear"):
            await self.mirror.forget(*clear_from_wire(message.clear))

    async def _evict(self, keys: Keys, state: State) -> int:
        """`_forget`, and stores are to delete the bytes, too."""
        await self._stores.drop(self.index.lookup(keys))
        return await self._forget(keys, state)

    async def _forget(self, keys: Keys, state: State) -> int:
        """Blocks are gone everywhere; how many were live. While Redis is away it will bring them
        back, and the next reader finds them missing again."""
        now_unix_s = self._clock.now_unix_s()
        self.mirror.pending.forget(keys)
        if not self.mirror.is_loaded:  # the others are told of records only
            with contextlib.suppress(StoreAway):
                await self.mirror.read(keys)
        gone = self.index.forget(keys, state, now_unix_s)
        self.mirror.apply(gone)
        try:
            num_live = await self._link.call(
                partial(truth.forget, keys=keys, state=state, now_unix_s=now_unix_s),
                timeout_s=self._settings.redis_write_timeout_s,
            )
        except StoreAway:
            num_live = len(gone)
        if len(gone):
            await self._events.publish(gone)
        return num_live

    async def _flush(self) -> None:
        """Hand late registrations to Redis until none is left or it is away again."""
        try:
            records = await self.mirror.flush()
        except StoreAway:
            return
        if len(records):
            self.mirror.apply(records)
            await self._events.publish(records)

    async def _on_redis_return(self) -> None:
        await self._flush()
        with contextlib.suppress(StoreAway):
            await self._link.call(self._leases.release_owed)
        await self.mirror.on_redis_return()

    async def _on_reconnect(self) -> None:
        self.mirror.request("the bus was away")

    async def _tend_forever(self) -> None:
        while True:
            oldest_s = self._clock.monotonic_s() - self._settings.silent_s
            if silent := self._peers.drop_silent(oldest_s):
                self.mirror.request(f"{silent[0]} is silent")
            try:
                await self.upkeep.tend()
                await self._flush()
            except StoreAway:
                self.upkeep.num_leases = 0
            await asyncio.sleep(self._settings.tend_interval_s)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_interval_s)
            try:
                await self.upkeep.sweep()
            except StoreAway:
                continue

    def _fill_load(self, report: LoadReport) -> None:
        fill_load(
            report,
            IndexFacts(
                num_active=self._num_active,
                num_leases=self.upkeep.num_leases,
                num_blocks=self.index.num_live,
                index_bytes=self.index.num_bytes,
                is_loaded=self.mirror.is_loaded,
                num_resyncs=self.mirror.num_resyncs,
                num_pending=len(self.mirror.pending),
                num_quota_evicted=self.upkeep.num_quota_evicted,
                num_asked=self.matcher.counts.num_asked,
                num_matched=self.matcher.counts.num_matched,
                misses=self.matcher.counts.misses,
            ),
        )


def _contents(blocks: Sequence[StoredBlock]) -> list[tuple[bytes, bytes]]:
    return [(block.content_key, block.key) for block in blocks if block.content_key]
