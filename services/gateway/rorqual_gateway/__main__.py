"""`python -m rorqual_gateway`: wiring only."""

from contextlib import aclosing
from importlib.metadata import version

from rorqual_runtime.identities.files import sign_in_url
from rorqual_runtime.logs import get_logger
from rorqual_runtime.redis_link import RedisLink, open_link
from rorqual_runtime.service import open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_gateway.app import make_app
from rorqual_gateway.cors import parse_cors_origins
from rorqual_gateway.server import TlsFiles, make_server, open_listener
from rorqual_gateway.service import GatewayService
from rorqual_gateway.settings import GatewaySettings

log = get_logger(__name__)

SHUTDOWN_S = 2.0


async def main() -> None:
    """Serve until told to stop."""
    settings, runtime = GatewaySettings(), RuntimeSettings()
    number = version("rorqual-gateway")
    async with (
        aclosing(_open_link(runtime, settings)) as link,
        open_service("gateway", runtime, version=number) as ctx,
    ):
        gateway = GatewayService(ctx, link, settings)
        await gateway.start()
        listener = open_listener(settings.host, settings.port)
        app = make_app(
            gateway, version=number, cors_origins=parse_cors_origins(settings.cors_origins)
        )
        server = make_server(
            app,
            shutdown_s=SHUTDOWN_S,
            max_connections=settings.max_connections,
            tls=_tls(settings),
        )
        serving = ctx.track(server.serve(sockets=[listener]))
        ctx.mark_ready()
        log.info("listening", extra={"host": settings.host, "port": listener.getsockname()[1]})
        await run_until_signal(ctx, gateway.drain)
        server.should_exit = True
        await serving


def _tls(settings: GatewaySettings) -> TlsFiles | None:
    """Raises: Unsupported for a pair that can't be used."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    tls = TlsFiles(settings.tls_cert, settings.tls_key)
    tls.check()
    return tls


def _open_link(runtime: RuntimeSettings, settings: GatewaySettings) -> RedisLink:
    """Connects when it is needed. Raises: Unsupported, which ends the start with one line."""
    return open_link(
        sign_in_url(runtime.redis_url, "gateway", runtime.secrets_dir),
        timeout_s=settings.redis_timeout_s,
        probe_interval_s=settings.redis_probe_interval_s,
        max_connections=settings.redis_connections,
    )


if __name__ == "__main__":
    run(main())
