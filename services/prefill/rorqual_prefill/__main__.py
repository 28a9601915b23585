"""Entry point of a prefill instance: wiring only."""

from __future__ import annotations

from rorqual_engine.device import configure_threads
from rorqual_runtime.service import open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_prefill.settings import PrefillSettings


async def main() -> None:
    """Serve until told to stop."""
    settings = PrefillSettings()
    configure_threads(settings.num_threads or None)
    from rorqual_prefill.wiring import open_prefill  # loads torch, which reads the thread settings

    async with (
        open_service("prefill", RuntimeSettings()) as ctx,
        open_prefill(ctx, settings) as instance,
    ):
        await run_until_signal(ctx, instance.drain)


if __name__ == "__main__":
    run(main())
