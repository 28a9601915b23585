"""The console's routes: what is open, what needs a key, and what can't be reached."""

from __future__ import annotations

import httpx
import pytest

from tests.support.waiting import WAIT_S, until


async def test_the_page_is_open_and_what_it_shows_needs_the_scope(start_fleet) -> None:
    fleet = await start_fleet(api_keys="team:secret")
    await until(lambda: fleet.gateway.service.fleet.live("recipe"))
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        page = await client.get("/console", follow_redirects=True)
        again = await client.get("/console/", headers={"if-none-match": page.headers["etag"]})
        script = await client.get("/console/app.js")
        paths = ("fleet", "requests", "traces/a")
        refused = [await client.get(f"/console-api/{path}") for path in paths]
        key = {"x-api-key": "secret"}
        seen = (await client.get("/console-api/fleet", headers=key)).json()
        missing = await client.get("/console-api/traces/nothing", headers=key)
    assert page.status_code == 200 and "Rorqual" in page.text
    assert again.status_code == 304
    assert script.headers["content-type"].startswith("text/javascript")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert [answer.status_code for answer in refused] == [401, 401, 401]
    assert "recipe" in {instance["service"] for instance in seen["instances"]}
    assert "prefill" in seen["missing"]
    assert missing.status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "../pages.py",
        "%2e%2e/pages.py",
        "..%2f..%2fservice.py",
        "vendor/../../pages.py",
        "/etc/hosts",
    ],
)
async def test_nothing_but_the_consoles_own_files_is_sent(start_fleet, path: str) -> None:
    fleet = await start_fleet()
    async with httpx.AsyncClient(base_url=fleet.gateway.url, timeout=WAIT_S) as client:
        answer = await client.get(f"/console/{path}")
    assert answer.status_code == 404
    assert "import" not in answer.text and "root:" not in answer.text
