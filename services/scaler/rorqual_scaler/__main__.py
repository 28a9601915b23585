"""`python -m rorqual_scaler`: wiring only."""

from rorqual_runtime.service import ServiceContext, open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_scaler.drivers import Driver, NoDriver
from rorqual_scaler.local_driver import LocalDriver, LocalDriverParams
from rorqual_scaler.service import ScalerService
from rorqual_scaler.settings import ScalerSettings


def make_driver(ctx: ServiceContext, settings: ScalerSettings) -> Driver:
    if settings.driver == "none":
        return NoDriver()
    secrets_dir = ctx.settings.secrets_dir
    params = LocalDriverParams(
        modules={"prefill": settings.prefill_module, "decode": settings.decode_module},
        home=ctx.settings.home,
        start_deadline_s=settings.start_deadline_s,
        drain_s=settings.drain_s,
        kill_after_s=settings.kill_after_s,
        restart_pause_s=settings.restart_pause_s,
        secrets_dir=secrets_dir.parent if secrets_dir else None,
    )
    return LocalDriver(ctx.bus, ctx.clock, params, ctx.track)


async def main() -> None:
    settings = ScalerSettings()
    async with open_service("scaler", RuntimeSettings()) as ctx:
        service = ScalerService(ctx, make_driver(ctx, settings), settings)
        await service.start()
        await run_until_signal(ctx, service.drain)


if __name__ == "__main__":
    run(main())
