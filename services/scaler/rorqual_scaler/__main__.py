"""`python -m rorqual_scaler`: wiring only."""

import shlex

from rorqual_runtime.service import ServiceContext, open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_scaler.compose import Compose, ComposeParams
from rorqual_scaler.counted_driver import CountedDriver, CountedDriverParams, Orchestrator
from rorqual_scaler.drivers import Driver, NoDriver
from rorqual_scaler.local_driver import LocalDriver, LocalDriverParams
from rorqual_scaler.service import ScalerService
from rorqual_scaler.settings import SERVICES, ScalerSettings


async def make_driver(ctx: ServiceContext, settings: ScalerSettings) -> Driver:
    if settings.driver == "none":
        return NoDriver()
    if settings.driver == "local":
        return _local_driver(ctx, settings)
    elastic = [service for service in SERVICES if settings.is_elastic(service)]
    params = CountedDriverParams(
        services=tuple(elastic),
        start_deadline_s=settings.start_deadline_s,
        drain_s=settings.drain_s,
        poll_s=settings.poll_s,
        retry_pause_s=settings.restart_pause_s,
    )
    return CountedDriver(await _orchestrator(ctx, settings), ctx.clock, params, ctx.track)


def _local_driver(ctx: ServiceContext, settings: ScalerSettings) -> LocalDriver:
    secrets_dir = ctx.settings.secrets_dir
    params = LocalDriverParams(
        modules=settings.modules,
        home=ctx.settings.home,
        start_deadline_s=settings.start_deadline_s,
        drain_s=settings.drain_s,
        kill_after_s=settings.kill_after_s,
        restart_pause_s=settings.restart_pause_s,
        secrets_dir=secrets_dir.parent if secrets_dir else None,
    )
    return LocalDriver(ctx.bus, ctx.clock, params, ctx.track)


async def _orchestrator(ctx: ServiceContext, settings: ScalerSettings) -> Orchestrator:
    if settings.driver == "kubernetes":
        from rorqual_scaler.cluster import ClusterParams, open_cluster

        return await open_cluster(
            ctx.clock, ClusterParams(settings.kubernetes_namespace, settings.call_timeout_s)
        )
    command = tuple(shlex.split(settings.compose_command))
    params = ComposeParams(
        command, settings.compose_file, settings.compose_project, settings.call_timeout_s
    )
    return Compose(params)


async def main() -> None:
    settings = ScalerSettings()
    async with open_service("scaler", RuntimeSettings()) as ctx:
        service = ScalerService(ctx, await make_driver(ctx, settings), settings)
        await service.start()
        await run_until_signal(ctx, service.drain)


if __name__ == "__main__":
    run(main())
