"""`python -m rorqual_kvmeta`: wiring only."""

from contextlib import aclosing

from rorqual_runtime.service import open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_kvmeta.redis_link import RedisLink
from rorqual_kvmeta.service import KvmetaService
from rorqual_kvmeta.settings import KvmetaSettings


async def main() -> None:
    settings, runtime = KvmetaSettings(), RuntimeSettings()
    link = RedisLink(
        runtime.redis_url,
        timeout_s=settings.redis_timeout_s,
        probe_interval_s=settings.redis_probe_interval_s,
        max_connections=settings.redis_connections,
    )
    async with aclosing(link), open_service("kvmeta", runtime) as ctx:
        service = KvmetaService(ctx, link, settings)
        await service.start()
        await run_until_signal(ctx, service.drain)


if __name__ == "__main__":
    run(main())
