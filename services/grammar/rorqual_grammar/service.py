"""Handlers of the grammar service."""

from __future__ import annotations

from opentelemetry import trace
from rorqual_runtime import subjects
from rorqual_runtime.cancelled import CancelledIds, cancel_target
from rorqual_runtime.context import MessageContext
from rorqual_runtime.errors import InvalidRequest, Unsupported
from rorqual_runtime.service import ServiceContext
from rorqual_runtime.under_way import UnderWay

from rorqual_grammar import convert
from rorqual_grammar.cache import GrammarCache
from rorqual_grammar.settings import GrammarSettings
from rorqual_grammar.shelf import GrammarShelf


class GrammarService:
    """Compiles constraints, once for equal ones, and answers with a ticket."""

    def __init__(self, ctx: ServiceContext, settings: GrammarSettings, cache: GrammarCache) -> None:
        self._ctx = ctx
        self._settings = settings
        self._cache = cache
        self._shelf = GrammarShelf(ctx.tensors, lease_s=settings.lease_s)
        self._under_way = UnderWay(CancelledIds(ctx.clock))

    async def start(self) -> None:
        """Serve requests from now on."""
        bus = self._ctx.bus
        self._ctx.report_load(self._fill)
        await bus.subscribe(subjects.cancel(), convert.CancelMessage, self.on_cancel)
        await bus.serve(
            subjects.grammar_compile(),
            convert.CompileMessage,
            convert.CompileReplyMessage,
            self.on_compile,
            name="compile",
        )

    async def on_compile(
        self, request: convert.CompileMessage, _context: MessageContext
    ) -> convert.CompileReplyMessage:
        """Raises: InvalidRequest, Unsupported, NoCapacity, Unavailable, Cancelled."""
        constraint = convert.constraint_from_wire(
            request.constraint, max_source_bytes=self._settings.max_source_bytes
        )
        started_s = self._ctx.clock.monotonic_s()
        work = self._cache.get(constraint)
        try:
            compiled, hit = await self._under_way.run(request.request_id, work)
        except (InvalidRequest, Unsupported) as error:
            raise convert.blame(error, constraint) from None
        compile_s = 0.0 if hit else self._ctx.clock.monotonic_s() - started_s
        span = trace.get_current_span()
        span.set_attribute("rorqual.grammar.kind", constraint.kind.value)
        span.set_attribute("rorqual.grammar.cache_hit", hit)
        ticket = await self._shelf.ticket(constraint.key, compiled)
        return convert.compiled_to_wire(ticket, cache_hit=hit, compile_s=compile_s)

    async def on_cancel(self, request: convert.CancelMessage, _context: MessageContext) -> None:
        """Stop waiting for this request; unknown ids are fine. One choice that ends leaves the
        grammar to the others."""
        request_id, choice_index = cancel_target(request)
        if choice_index is None:
            self._under_way.cancel(request_id)

    async def drain(self, _timeout_s: float) -> None:
        """Return once no compilation is asked for any more."""
        await self._under_way.wait_idle()

    def _fill(self, report: convert.LoadMessage) -> None:
        convert.fill_load(report, num_active_requests=len(self._under_way))
