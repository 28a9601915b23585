"""`python -m rorqual_recipe`: wiring only."""

import asyncio

from rorqual_runtime.identities.files import sign_in_url
from rorqual_runtime.service import open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings

from rorqual_recipe.model import load_served_model
from rorqual_recipe.response_memory import open_memory
from rorqual_recipe.service import RecipeService
from rorqual_recipe.settings import RecipeSettings


async def main() -> None:
    """Serve until told to stop."""
    settings, runtime = RecipeSettings(), RuntimeSettings()
    async with (
        open_service("recipe", runtime) as ctx,
        open_memory(ctx.clock, _redis_url(runtime), settings) as memory,
    ):
        model = await asyncio.to_thread(load_served_model, settings)
        service = RecipeService(ctx, settings, model, memory)
        await service.start()
        ctx.mark_ready()
        await run_until_signal(ctx, service.drain)


def _redis_url(runtime: RuntimeSettings) -> str:
    return sign_in_url(runtime.redis_url, "recipe", runtime.secrets_dir)


if __name__ == "__main__":
    run(main())
