"""`python -m rorqual_router`: wiring only."""

from rorqual_runtime.queue import WorkQueue
from rorqual_runtime.service import open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_router.service import RouterService
from rorqual_router.settings import RouterSettings


async def main() -> None:
    settings = RouterSettings()
    async with open_service("router", RuntimeSettings()) as ctx:
        queue = WorkQueue(ctx.bus, num_replicas=settings.queue_replicas)
        await queue.ensure()
        service = RouterService(ctx, queue, settings)
        await service.start()
        await run_until_signal(ctx, service.drain)


if __name__ == "__main__":
    run(main())
