"""Answers matches from the index, and notes afterwards what they told."""

from collections.abc import Awaitable, Callable
from functools import partial

from opentelemetry.trace import Tracer
from rorqual_runtime.clock import Clock
from rorqual_runtime.redis_link import RedisLink, StoreAway

from rorqual_kvmeta.contents import FirstBlocks
from rorqual_kvmeta.counts import MatchCounts
from rorqual_kvmeta.index import STORE_AWAY, BlockIndex, IndexMatch
from rorqual_kvmeta.leases import Lease, Leases
from rorqual_kvmeta.mirror import IndexMirror
from rorqual_kvmeta.records import Keys, Records, keys_of, record_keys

FIRST_READ, MAX_READ = 64, 1024
"""Blocks of a prompt asked of Redis at first and at most, while the index is not loaded."""


class Matcher:
    """Longest stored prefixes. Lives on the event loop."""

    def __init__(
        self,
        index: BlockIndex,
        mirror: IndexMirror,
        link: RedisLink,
        leases: Leases,
        first_blocks: FirstBlocks,
        publish: Callable[[Records], Awaitable[None]],
        clock: Clock,
        tracer: Tracer,
        *,
        touch_share: float,
    ) -> None:
        """publish: tells other instances what has changed; touch_share: see `BlockIndex.touch`."""
        self._index, self._mirror, self._link = index, mirror, link
        self._leases, self._first_blocks = leases, first_blocks
        self._publish, self._clock, self._tracer = publish, clock, tracer
        self._touch_share = touch_share
        self.counts = MatchCounts()

    async def match(self, model: int, keys: Keys, *, exact_only: bool) -> IndexMatch:
        """The known prefix. No wait, unless the index is not loaded yet: then Redis is asked for
        what is not known."""
        look = partial(self._index.match, model, keys, exact_only=exact_only)
        match = look(self._clock.now_unix_s())
        size = FIRST_READ
        try:
            while not self._mirror.is_loaded and match.num_blocks < min(len(keys), MAX_READ):
                start = match.num_blocks
                await self._mirror.read(keys[start : start + size])
                match, size = look(self._clock.now_unix_s()), size * 4
                if match.num_blocks < min(start + size // 4, len(keys)):
                    break
        except StoreAway:
            return match if match.num_blocks else STORE_AWAY
        return match

    async def note(
        self, keys: Keys, match: IndexMatch, lease: Lease | None, content_key: bytes
    ) -> None:
        """Counts, lifetimes and lease, after the answer: so they tell nobody anything, and both
        outlast the few milliseconds by far."""
        self._count(keys, match, content_key)
        if lease is None:
            return
        matched = keys[: match.num_blocks]
        touched = self._index.touch(matched, self._clock.now_unix_s(), self._touch_share)
        self._mirror.note(touched)
        try:
            await self._link.call(lambda redis: self._leases.add(redis, lease, matched))
            await self._mirror.write(touched, only_live=True)
        except StoreAway:
            return
        if len(touched):
            # As they are now: some may have been forgotten meanwhile, and a use revives none.
            await self._publish(self._index.lookup(record_keys(touched)))

    def _count(self, keys: Keys, match: IndexMatch, content_key: bytes) -> None:
        reason = match.miss_reason
        if self._is_elsewhere(keys, match, content_key):
            reason = "namespace"  # for operators: in counts, and in the trace of the request
            self._tracer.start_span("kvmeta.miss", attributes={"rorqual.miss_reason": reason}).end()
        self.counts.note(len(keys), match.num_blocks, reason)

    def _is_elsewhere(self, keys: Keys, match: IndexMatch, content_key: bytes) -> bool:
        """Whether the prompt begins like one of another namespace, and that is stored."""
        if match.num_blocks or match.miss_reason != "never_stored" or not content_key:
            return False
        other = self._first_blocks.elsewhere(content_key, keys[0].tobytes())
        return other is not None and self._index.is_live(keys_of([other]), self._clock.now_unix_s())
