"""Handlers of kvmeta: which prefix blocks exist. A hint, never a proof."""

import asyncio

from opentelemetry import trace
from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.logs import get_logger
from rorqual_runtime.service import ServiceContext

from rorqual_kvmeta.blocks import (
    NO_BLOCKS,
    STORE_AWAY,
    BlockMatch,
    Lifetimes,
    StoredBlock,
)
from rorqual_kvmeta.convert import (
    ForgetBlocksRequest,
    LoadReport,
    MatchReply,
    MatchRequest,
    RegisterBlocksReply,
    RegisterBlocksRequest,
    ReleaseLeaseRequest,
    blocks_from_wire,
    fingerprint_from_wire,
    forget_from_wire,
    keys_from_wire,
    match_to_wire,
    registered_to_wire,
)
from rorqual_kvmeta.index import BlockIndex, Records
from rorqual_kvmeta.leases import Lease, Leases
from rorqual_kvmeta.pending import PendingBlocks
from rorqual_kvmeta.redis_link import RedisLink, StoreAway
from rorqual_kvmeta.settings import KvmetaSettings

QUEUE = "q"
FLUSH_BLOCKS = 1024
"""Registrations handed to Redis at a time after it came back."""

log = get_logger(__name__)


class KvmetaService:
    """Matches, registrations and leases; Redis holds all state but late registrations."""

    def __init__(self, ctx: ServiceContext, link: RedisLink, settings: KvmetaSettings) -> None:
        self._ctx = ctx
        self._link = link
        self._settings = settings
        self._index = BlockIndex(_lifetimes(settings), ctx.clock)
        self._leases = Leases(settings.lease_s, ctx.clock)
        self._num_leases = 0
        self._num_active = 0
        self.pending = PendingBlocks(settings.max_pending_blocks)

    async def start(self) -> None:
        """Serve, with Redis or without: until it is there, nothing matches."""
        ctx, bus = self._ctx, self._ctx.bus
        await self._link.connect()
        ctx.track(self._link.keep_up(self._flush))
        ctx.track(self._sweep())
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
            subjects.kvmeta_match(), MatchRequest, MatchReply, self.on_match, name="match"
        )
        ctx.mark_ready()

    async def drain(self, timeout_s: float) -> None:
        """Hand late registrations over if Redis takes them; nothing else is held here."""
        await self._flush()

    async def on_match(self, request: MatchRequest, _context: MessageContext) -> MatchReply:
        fingerprint = fingerprint_from_wire(request.model_fingerprint)
        keys = keys_from_wire(request.block_keys, "block_keys")
        match, lease = NO_BLOCKS, None
        if keys:
            match, lease = await self._match(fingerprint, keys)
        trace.get_current_span().set_attributes(
            {
                "rorqual.num_blocks": len(keys),
                "rorqual.num_matched_blocks": match.num_blocks,
                "rorqual.miss_reason": match.miss_reason,
            }
        )
        if lease is None:
            return match_to_wire(match, "", 0.0)
        return match_to_wire(match, lease.lease_id, lease.expires_unix_s)

    async def on_register(
        self, request: RegisterBlocksRequest, _context: MessageContext
    ) -> RegisterBlocksReply:
        """Blocks that Redis can't take now are kept for later, and not counted in the answer."""
        fingerprint = fingerprint_from_wire(request.model_fingerprint)
        blocks = blocks_from_wire(request)
        if not blocks:
            return registered_to_wire(0)
        try:
            num_registered = await self._register(fingerprint, blocks)
        except StoreAway:
            self.pending.add(fingerprint, blocks)
            num_registered = 0
        return registered_to_wire(num_registered)

    async def on_forget(self, request: ForgetBlocksRequest, _context: MessageContext) -> None:
        fingerprint, keys = forget_from_wire(request)
        self.pending.forget(fingerprint, keys)
        if not keys:
            return
        try:
            num_forgotten = await self._link.call(
                lambda redis: self._index.forget(redis, fingerprint, keys),
                timeout_s=self._settings.redis_write_timeout_s,
            )
        except StoreAway:
            return  # The next reader finds them missing again.
        extra = {"num_blocks": num_forgotten, "reason": request.reason}
        log.info("blocks forgotten", extra=extra)

    async def on_release(self, request: ReleaseLeaseRequest, _context: MessageContext) -> None:
        try:
            await self._link.call(lambda redis: self._leases.release(redis, request.lease_id))
        except StoreAway:
            return  # It expires.

    async def _match(self, fingerprint: str, keys: list[bytes]) -> tuple[BlockMatch, Lease | None]:
        self._num_active += 1
        try:
            match, touched = await self._link.call(
                lambda redis: self._index.match(redis, fingerprint, keys)
            )
        except StoreAway:
            return STORE_AWAY, None
        finally:
            self._num_active -= 1
        if not match.num_blocks:
            return match, None
        lease = self._leases.new()
        self._ctx.track(self._note_use(touched, lease))
        return match, lease

    async def _note_use(self, touched: Records, lease: Lease) -> None:
        """Lifetimes and lease, after the answer: both outlast the few milliseconds by far."""
        try:
            await self._link.call(lambda redis: self._leases.add(redis, lease))
            if touched:
                await self._link.call(
                    lambda redis: self._index.write(redis, touched, only_existing=True),
                    timeout_s=self._settings.redis_write_timeout_s,
                )
        except StoreAway:
            return

    async def _register(self, fingerprint: str, blocks: list[StoredBlock]) -> int:
        return await self._link.call(
            lambda redis: self._index.register(redis, fingerprint, blocks),
            timeout_s=self._settings.redis_write_timeout_s,
        )

    async def _flush(self) -> None:
        """Hand late registrations to Redis until none is left or it is away again."""
        while len(self.pending):
            fingerprint, blocks = self.pending.take(FLUSH_BLOCKS)
            try:
                await self._register(fingerprint, blocks)
            except StoreAway:
                self.pending.add(fingerprint, blocks)
                return

    async def _sweep(self) -> None:
        while True:
            try:
                self._num_leases = await self._link.call(self._leases.sweep)
                await self._flush()
            except StoreAway:
                self._num_leases = 0
            await asyncio.sleep(self._settings.sweep_interval_s)

    def _fill_load(self, report: LoadReport) -> None:
        report.num_active_requests = self._num_active
        report.num_held_leases = self._num_leases


def _lifetimes(settings: KvmetaSettings) -> Lifetimes:
    return Lifetimes(
        chat_s=settings.chat_lifetime_s,
        agent_s=settings.agent_lifetime_s,
        expired_memory_s=settings.expired_memory_s,
        touch_share=settings.touch_share,
    )
