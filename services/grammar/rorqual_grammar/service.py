"""Handlers of the grammar service."""

from __future__ import annotations

import asyncio

from opentelemetry import trace
from rorqual_proto.v1 import grammar_pb2, load_pb2, router_pb2
from rorqual_runtime import subjects
from rorqual_runtime.cancelled import CancelledIds
from rorqual_runtime.context import MessageContext
from rorqual_runtime.errors import Cancelled
from rorqual_runtime.service import ServiceContext

from rorqual_grammar.cache import GrammarCache
from rorqual_grammar.constraint import Constraint
from rorqual_grammar.convert import compiled_to_wire, constraint_from_wire, fill_load
from rorqual_grammar.settings import GrammarSettings
from rorqual_grammar.shelf import GrammarShelf


class GrammarService:
    """Compiles constraints, once for equal ones, and answers with a ticket."""

    def __init__(self, ctx: ServiceContext, settings: GrammarSettings, cache: GrammarCache) -> None:
        self._ctx = ctx
        self._settings = settings
        self._cache = cache
        self._shelf = GrammarShelf(ctx.tensors, lease_s=settings.lease_s)
        self._cancelled = CancelledIds()
        self._active: dict[str, asyncio.Task[tuple[bytes, bool]]] = {}

    async def start(self) -> None:
        """Serve requests from now on."""
        bus = self._ctx.bus
        self._ctx.report_load(self._fill)
        await bus.subscribe(subjects.cancel(), router_pb2.CancelRequest, self.on_cancel)
        await bus.serve(
            subjects.grammar_compile(),
            grammar_pb2.CompileRequest,
            grammar_pb2.CompileReply,
            self.on_compile,
            name="compile",
        )

    async def on_compile(
        self, request: grammar_pb2.CompileRequest, _context: MessageContext
    ) -> grammar_pb2.CompileReply:
        """Raises: InvalidRequest, Unsupported, NoCapacity, Unavailable, Cancelled."""
        constraint = constraint_from_wire(
            request.constraint, max_source_bytes=self._settings.max_source_bytes
        )
        started_s = self._ctx.clock.monotonic_s()
        compiled, hit = await self._compile(request.request_id, constraint)
        compile_s = 0.0 if hit else self._ctx.clock.monotonic_s() - started_s
        span = trace.get_current_span()
        span.set_attribute("rorqual.grammar.kind", constraint.kind.value)
        span.set_attribute("rorqual.grammar.cache_hit", hit)
        ticket = await self._shelf.ticket(constraint.key, compiled)
        return compiled_to_wire(ticket, cache_hit=hit, compile_s=compile_s)

    async def on_cancel(self, request: router_pb2.CancelRequest, _context: MessageContext) -> None:
        """Stop waiting for this request; unknown ids are fine."""
        self._cancelled.add(request.request_id)
        task = self._active.get(request.request_id)
        if task is not None:
            task.cancel()

    async def drain(self, _timeout_s: float) -> None:
        """Return once no compilation is asked for any more."""
        while self._active:
            await asyncio.wait(self._active.values())

    async def _compile(self, request_id: str, constraint: Constraint) -> tuple[bytes, bool]:
        """The compiled grammar and whether it was cached, unless the request is cancelled."""
        if request_id in self._cancelled:
            raise Cancelled()
        task = asyncio.ensure_future(self._cache.get(constraint))
        self._active[request_id] = task
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            if request_id in self._cancelled:
                raise Cancelled() from None
            raise
        finally:
            if self._active.get(request_id) is task:
                del self._active[request_id]

    def _fill(self, report: load_pb2.LoadReport) -> None:
        fill_load(report, num_active_requests=len(self._active), num_request_leases=0)
