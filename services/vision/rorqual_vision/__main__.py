"""`python -m rorqual_vision`: wiring only."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack

from rorqual_engine.device import configure_threads
from rorqual_runtime.service import ServiceContext, open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_vision.service import VisionService
from rorqual_vision.settings import VisionSettings
from rorqual_vision.tower import ModelDescription, ModelDescriptionError, read_description


async def main() -> None:
    """Serve until a signal, then drain."""
    settings = VisionSettings()
    try:
        model = read_description(settings.model_dir)
    except ModelDescriptionError as error:
        sys.exit(f"vision: {error}")
    async with open_service("vision", RuntimeSettings()) as ctx, AsyncExitStack() as stack:
        service = await _make(ctx, settings, model, stack)
        await service.start()
        ctx.mark_ready()
        await run_until_signal(ctx, service.drain)


async def _make(
    ctx: ServiceContext, settings: VisionSettings, model: ModelDescription, stack: AsyncExitStack
) -> VisionService:
    """torch is imported for a model that sees only."""
    if not model.can_run:
        return VisionService(ctx, model)
    configure_threads(settings.num_threads or None)
    from rorqual_vision.eyes import open_eyes

    return VisionService(ctx, model, await stack.enter_async_context(open_eyes(ctx, settings)))


if __name__ == "__main__":
    run(main())
