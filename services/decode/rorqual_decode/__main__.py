"""Entry point of a decode instance: wiring only."""

from __future__ import annotations

from rorqual_engine.device import configure_threads
from rorqual_runtime.service import open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_decode.settings import DecodeSettings


async def main() -> None:
    """Serve until told to stop."""
    settings = DecodeSettings()
    configure_threads(settings.num_threads or None)
    from rorqual_decode.wiring import open_decode  # loads torch, which reads the thread settings

    async with (
        open_service("decode", RuntimeSettings()) as ctx,
        open_decode(ctx, settings) as instance,
    ):
        await run_until_signal(ctx, instance.drain)


if __name__ == "__main__":
    run(main())
