"""`python -m rorqual_vision`: wiring only."""

from __future__ import annotations

import sys

from rorqual_runtime.service import open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_vision.service import VisionService
from rorqual_vision.settings import VisionSettings
from rorqual_vision.tower import ModelDescriptionError, read_description


async def main() -> None:
    """Serve until a signal, then drain."""
    try:
        model = read_description(VisionSettings().model_dir)
    except ModelDescriptionError as error:
        sys.exit(f"vision: {error}")
    async with open_service("vision", RuntimeSettings()) as ctx:
        service = VisionService(ctx, model)
        await service.start()
        ctx.mark_ready()
        await run_until_signal(ctx, service.drain)


if __name__ == "__main__":
    run(main())
