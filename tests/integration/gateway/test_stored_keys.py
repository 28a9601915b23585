"""Keys from Redis at the edge: who comes in, what is left of the quotas, and Redis being away."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest
from anthropic import AsyncAnthropic, RateLimitError
from redis.asyncio import Redis
from rorqual_gateway import stored_keys
from rorqual_runtime.accounts.keys import ApiKey, KeyLimits, KeyStore, Scope, new_secret
from rorqual_runtime.settings import RuntimeSettings

from tests.integration.gateway.conftest import never
from tests.support.chat_model_dir import MODEL_ID
from tests.support.servers import RedisServer
from tests.support.waiting import WAIT_S, until

UNDER_WAY = "rorqual:v1:{quota:k1}:under_way"
BODY = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def runtime_settings(runtime_settings: RuntimeSettings, redis_server: RedisServer):
    return runtime_settings.model_copy(update={"redis_url": redis_server.url})


async def make_key(server: RedisServer, key_id: str = "k1", **fields: object) -> str:
    """The secret of a new key."""
    data = {"scopes": frozenset({Scope.INFERENCE}), "tenant": "team", **fields}
    key = ApiKey(id=key_id, name=key_id, created_unix_s=1.0, **data)  # type: ignore[arg-type]
    secret = new_secret(key_id)
    async with Redis.from_url(server.url) as redis:
        await KeyStore(redis).add(key, secret)
    return secret


async def ask(fleet, secret: str, **fields: object):
    client = fleet.client.with_options(api_key=secret)
    return await client.chat.completions.with_raw_response.create(**{**BODY, **fields})


async def test_stored_keys_open_by_scope_and_tenant_until_they_end(
    start_fleet, redis_server: RedisServer
) -> None:
    fleet = await start_fleet(
        stored_keys=True, api_keys="fixed:own-key", key_fresh_s=0.0, metrics_need_key=True
    )
    fleet.say("Hello")
    secret = await make_key(redis_server)
    scraper = await make_key(redis_server, "k2", scopes=frozenset({Scope.METRICS}))
    ended = await make_key(redis_server, "k3", expires_unix_s=2.0)
    await ask(fleet, secret)
    await ask(fleet, "own-key")
    namespaces = [generation.cache_namespace for generation in fleet.backend.submitted]
    assert "team" in namespaces[0] and "fixed" in namespaces[1]
    with pytest.raises(openai.PermissionDeniedError, match="inference"):
        await ask(fleet, scraper)
    for wrong in (ended, new_secret("k1"), "none"):
        with pytest.raises(openai.AuthenticationError):
            await ask(fleet, wrong)
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        statuses = [
            (await client.get("/metrics", headers={"x-api-key": key})).status_code
            for key in (scraper, "own-key", secret, "none")
        ]
    assert statuses == [200, 200, 403, 401]
    async with Redis.from_url(redis_server.url) as redis:
        await KeyStore(redis).revoke("k1")
    with pytest.raises(openai.AuthenticationError):
        await ask(fleet, secret)


async def test_quotas_hold_over_two_gateways_and_say_what_is_left(
    start_fleet, redis_server: RedisServer
) -> None:
    first, second = await start_fleet(stored_keys=True), await start_fleet(stored_keys=True)
    first.say("Hello, world!")
    second.say("Hello, world!")
    limits = KeyLimits(requests_per_minute=2, tokens_per_minute=60)
    secret = await make_key(redis_server, limits=limits)
    answers = [await ask(first, secret)]
    async with Redis.from_url(redis_server.url) as redis:
        await until(lambda: redis.exists("rorqual:v1:{quota:k1}:tokens"), "tokens that count")
    answers.append(await ask(second, secret))
    assert [a.headers["x-ratelimit-remaining-requests"] for a in answers] == ["1", "0"]
    assert answers[0].headers["x-ratelimit-remaining-tokens"] == "60"
    assert int(answers[1].headers["x-ratelimit-remaining-tokens"]) < 60
    with pytest.raises(openai.RateLimitError, match="2 requests a minute") as refused:
        await ask(first, secret)
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    assert refused.value.response.headers["x-ratelimit-limit-requests"] == "2"
    anthropic = AsyncAnthropic(base_url=second.gateway.url, api_key=secret, max_retries=0)
    async with anthropic:
        with pytest.raises(RateLimitError) as too_many:
            message = {"role": "user", "content": "Hello"}
            await anthropic.messages.create(model=MODEL_ID, max_tokens=8, messages=[message])
    assert too_many.value.response.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert too_many.value.response.headers["anthropic-ratelimit-requests-reset"].endswith("Z")


async def test_what_ends_in_any_way_gives_its_place_back(
    start_fleet, redis_server: RedisServer
) -> None:
    fleet = await start_fleet(stored_keys=True)
    secret = await make_key(redis_server, limits=KeyLimits(max_concurrent=1))
    fleet.backend.play = never
    first = asyncio.create_task(ask(fleet, secret))
    await until(lambda: fleet.backend.submitted)
    with pytest.raises(openai.RateLimitError, match="1 requests at once"):
        await ask(fleet, secret)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await until(lambda: fleet.gateway.service.admission.num_active == 0)
    fleet.say("Hello")
    for _ in range(5):
        await ask(fleet, secret)
        with pytest.raises(openai.BadRequestError):
            await ask(fleet, secret, temperature=-1)


async def test_while_redis_is_away_known_keys_go_on_and_unknown_ones_wait(
    start_fleet, redis_server: RedisServer
) -> None:
    fleet = await start_fleet(stored_keys=True, key_fresh_s=0.0)
    fleet.say("Hello")
    secret = await make_key(redis_server, limits=KeyLimits(requests_per_minute=1))
    new = await make_key(redis_server, "k2")
    await ask(fleet, secret)
    await redis_server.stop()
    await ask(fleet, secret)
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(fleet, new)
    assert caught.value.status_code == 503
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        assert "rorqual_quota_checks_skipped_total 1.0" in (await client.get("/metrics")).text


async def test_a_place_whose_request_ends_while_redis_is_away_is_free_on_its_return(
    start_fleet, redis_server: RedisServer
) -> None:
    fleet = await start_fleet(stored_keys=True)
    secret = await make_key(redis_server, limits=KeyLimits(max_concurrent=1))
    fleet.backend.play = never
    first = asyncio.create_task(ask(fleet, secret))
    await until(lambda: fleet.backend.submitted)
    async with Redis.from_url(redis_server.url) as redis:
        assert await redis.zcard(UNDER_WAY) == 1
        await redis.config_set("save", "3600 1")  # what it knows outlives the stop
    await redis_server.stop()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await until(lambda: fleet.gateway.service.admission.num_active == 0)
    await redis_server.start()
    async with Redis.from_url(redis_server.url) as redis:
        assert await KeyStore(redis).find(secret) is not None

        async def is_free() -> bool:
            return not await redis.zcard(UNDER_WAY)

        await until(is_free, "the place")


async def test_a_flood_of_guesses_pushes_no_good_key_out(
    start_fleet, redis_server: RedisServer
) -> None:
    fleet = await start_fleet(stored_keys=True, key_fresh_s=0.0)
    secret = await make_key(redis_server)
    stored = fleet.gateway.service.callers._stored
    assert await stored.find(secret) is not None
    for _ in range(stored_keys.MAX_UNKNOWN + 1):
        assert await stored.find(new_secret("guess")) is None
    assert len(stored._unknown) == stored_keys.MAX_UNKNOWN
    await redis_server.stop()
    assert await stored.find(secret) is not None
