"""`rorqual keys` against a real Redis."""

from __future__ import annotations

import asyncio
import json

import pytest
from redis import Redis
from rorqual_cli.__main__ import main

from tests.support.servers import RedisServer


def rorqual(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of one command."""
    with pytest.raises(SystemExit) as ended:
        main(["keys", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


async def test_a_key_is_made_listed_without_its_secret_and_revoked(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        return rorqual(capsys, *arguments, "--redis-url", redis_server.url)

    code, out, _ = await asyncio.to_thread(
        run, "create", "Ada", "--tenant", "team", "--requests-per-minute", "60", "--json"
    )
    made = json.loads(out)
    assert code == 0 and made["key"].startswith("sk-rq-")
    code, out, _ = await asyncio.to_thread(run, "list")
    assert made["key"] not in out
    assert "Ada" in out and "team" in out and "requests_per_minute=60" in out
    for bad, named in (
        (("create", "Ada", "--max-concurrent", "0"), "max_concurrent"),
        (("create", "Ada", "--tenant", "a b"), "tenant"),
        (("create", "Ada", "--expires-days", "-1"), "--expires-days"),
        (("create", "Ada", "--expires-days", "1e9"), "--expires-days"),
        (("revoke", "nobody"), "nobody"),
    ):
        code, _, err = await asyncio.to_thread(run, *bad)
        assert code != 0 and named in err and "Traceback" not in err
    code, _, _ = await asyncio.to_thread(run, "revoke", made["id"])
    assert code == 0
    with Redis.from_url(redis_server.url) as redis:
        assert not redis.keys("*api_keys*")


def test_a_redis_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = rorqual(capsys, "list", "--redis-url", "redis://127.0.0.1:1/0")
    assert code != 0 and not out
    assert "Redis does not answer" in err and "Traceback" not in err
