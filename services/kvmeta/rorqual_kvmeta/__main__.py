"""`python -m rorqual_kvmeta`: wiring only."""

from contextlib import aclosing

from rorqual_runtime.identities.files import sign_in_url
from rorqual_runtime.redis_link import RedisLink, open_link
from rorqual_runtime.service import open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_kvmeta.service import KvmetaService
from rorqual_kvmeta.settings import KvmetaSettings


async def main() -> None:
    settings, runtime = KvmetaSettings(), RuntimeSettings()
    async with (
        aclosing(_open_link(runtime, settings)) as link,
        open_service("kvmeta", runtime) as ctx,
    ):
        service = KvmetaService(ctx, link, settings)
        await service.start()
        await run_until_signal(ctx, service.drain)


def _open_link(runtime: RuntimeSettings, settings: KvmetaSettings) -> RedisLink:
    """Raises: Unsupported, which ends the start with one line."""
    return open_link(
        sign_in_url(runtime.redis_url, "kvmeta", runtime.secrets_dir),
        timeout_s=settings.redis_timeout_s,
        probe_interval_s=settings.redis_probe_interval_s,
        max_connections=settings.redis_connections,
    )


if __name__ == "__main__":
    run(main())
