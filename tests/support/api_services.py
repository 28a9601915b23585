"""recipe and gateway running inside a test's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rorqual_gateway.app import make_app
from rorqual_gateway.cors import parse_cors_origins
from rorqual_gateway.server import TlsFiles, make_server, open_listener
from rorqual_gateway.service import GatewayService
from rorqual_gateway.settings import GatewaySettings
from rorqual_recipe.model import ServedModel, load_served_model
from rorqual_recipe.response_memory import open_memory
from rorqual_recipe.service import RecipeService
from rorqual_recipe.settings import RecipeSettings
from rorqual_runtime.redis_link import RedisLink
from rorqual_runtime.service import ServiceContext, open_service
from rorqual_runtime.settings import RuntimeSettings

from tests.support.waiting import WAIT_S


@dataclass
class RunningRecipe:
    service: RecipeService
    ctx: ServiceContext
    model: ServedModel


@dataclass
class RunningGateway:
    service: GatewayService
    ctx: ServiceContext
    url: str


@asynccontextmanager
async def running_recipe(
    settings: RuntimeSettings,
    model_dir: Path,
    *,
    redis_url: str | None = None,
    **overrides: object,
) -> AsyncIterator[RunningRecipe]:
    """A recipe instance that serves `model_dir`; without a Redis it keeps no responses."""
    chosen = {"store_timeout_s": WAIT_S, **overrides}
    recipe_settings = RecipeSettings(model_dir=model_dir, **chosen)  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        ctx = await stack.enter_async_context(open_service("recipe", settings))
        memory = None
        if redis_url is not None:
            opened = open_memory(ctx.clock, redis_url, recipe_settings)
            memory = await stack.enter_async_context(opened)
        model = load_served_model(recipe_settings)
        service = RecipeService(ctx, recipe_settings, model, memory)
        await service.start()
        ctx.mark_ready()
        yield RunningRecipe(service, ctx, model)


@asynccontextmanager
async def running_gateway(
    settings: RuntimeSettings, *, tls: TlsFiles | None = None, **overrides: object
) -> AsyncIterator[RunningGateway]:
    """A gateway on a free port."""
    gateway_settings = GatewaySettings(port=0, **overrides)  # type: ignore[arg-type]
    link = RedisLink(settings.redis_url, timeout_s=WAIT_S, probe_interval_s=0.1, max_connections=4)
    async with aclosing(link), open_service("gateway", settings) as ctx:
        service = GatewayService(ctx, link, gateway_settings)
        await service.start()
        listener = open_listener("127.0.0.1", 0)
        origins = parse_cors_origins(gateway_settings.cors_origins)
        app = make_app(service, version="test", cors_origins=origins)
        server = make_server(
            app, shutdown_s=1, max_connections=gateway_settings.max_connections, tls=tls
        )
        serving = ctx.track(server.serve(sockets=[listener]))
        ctx.mark_ready()
        try:
            scheme, port = "https" if tls else "http", listener.getsockname()[1]
            yield RunningGateway(service, ctx, f"{scheme}://127.0.0.1:{port}")
        finally:
            server.should_exit = True
            server.force_exit = True
            await serving
