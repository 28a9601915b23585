"""`python -m rorqual_grammar`: wiring only."""

from __future__ import annotations

from rorqual_runtime.service import open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_grammar.cache import GrammarCache
from rorqual_grammar.pool import CompilerPool
from rorqual_grammar.service import GrammarService
from rorqual_grammar.settings import GrammarSettings


async def main() -> None:
    """Serve until a signal, then drain."""
    settings = GrammarSettings()
    async with open_service("grammar", RuntimeSettings()) as ctx:
        pool = CompilerPool(settings)
        await pool.start()
        try:
            cache = GrammarCache(pool.compile, capacity_bytes=settings.cache_bytes, clock=ctx.clock)
            service = GrammarService(ctx, settings, cache)
            await service.start()
            ctx.mark_ready()
            await run_until_signal(ctx, service.drain)
        finally:
            await pool.close()


if __name__ == "__main__":
    run(main())
