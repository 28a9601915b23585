"""What docs, dashboards and alerts name exists, and returns data, once a request was served."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from rorqual_cli.servers import free_port

from tests.e2e.chat import MODEL
from tests.support.fleet import RunningFleet
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"\b(?:vllm:|rorqual_|gen_ai_|process_)[a-z0-9_]+")
_FIRST_OF_THEIR_KIND = {"rorqual_requests_failed_total", "rorqual_requests_cancelled_total"}


@pytest.fixture(scope="module")
def served(shared_fleet: RunningFleet) -> RunningFleet:
    """A fleet that has answered the same prompt of some blocks twice."""
    text = "Watch this closely. " * 120
    for _ in range(2):
        answer = httpx.post(
            f"{shared_fleet.base_url}/v1/chat/completions",
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 8,
                "temperature": 0,
                "stream": True,
            },
            timeout=WAIT_S * 2,
        )
        assert answer.status_code == 200
        shared_fleet.wait_idle()
    return shared_fleet


def addresses(fleet: RunningFleet) -> list[str]:
    return [instance.metadata["metrics"] for instance in fleet.instances(WAIT_S / 10)]


def exported(fleet: RunningFleet) -> set[str]:
    """Names of all samples of all instances."""
    return {
        sample.name
        for address in addresses(fleet)
        for family in text_string_to_metric_families(httpx.get(address, timeout=WAIT_S).text)
        for sample in family.samples
    }


def queries() -> list[str]:
    """Of all panels of all dashboards."""
    boards = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
    assert boards
    return [
        target["expr"]
        for board in boards
        for panel in json.loads(board.read_text())["panels"]
        for target in panel["targets"]
    ]


def test_every_metric_that_is_written_about_exists(served: RunningFleet) -> None:
    there = exported(served)
    known = there | {name.removesuffix("_count") for name in there}
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    docs = (ROOT / "docs/metrics.md").read_text()
    for source in (docs, alerts, *queries()):
        named = set(_NAME.findall(source)) - _FIRST_OF_THEIR_KIND
        assert named and named <= known, sorted(named - known)


@pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus: apt-get install it")
def test_every_panel_returns_data_and_every_alert_can_be_evaluated(
    served: RunningFleet, tmp_path: Path
) -> None:
    alerts = ROOT / "deploy/prometheus/alerts.yml"
    subprocess.run(["promtool", "check", "rules", alerts], check=True, capture_output=True)
    rules = yaml.safe_load(alerts.read_text())["groups"][0]["rules"]
    with prometheus(tmp_path, addresses(served)) as url:
        waiting = {query.replace("$__rate_interval", "1m") for query in queries()}
        end_s = time.monotonic() + 2 * WAIT_S
        while waiting and time.monotonic() < end_s:
            time.sleep(1.0)
            waiting = {query for query in waiting if not ask(url, query)["result"]}
        assert not sorted(waiting), ask(url, "up")
        for rule in rules:
            ask(url, rule["expr"])


def ask(url: str, query: str) -> dict[str, list[object]]:
    """Result of a query, which the server must understand."""
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=WAIT_S).json()
    assert answer["status"] == "success", answer
    return answer["data"]


@contextmanager
def prometheus(home: Path, targets: list[str]) -> Iterator[str]:
    """A server that scrapes these addresses once a second."""
    hosts = [target.removeprefix("http://").removesuffix("/metrics") for target in targets]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "rorqual", "static_configs": [{"targets": hosts}]}],
    }
    (home / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    server = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={home / 'prometheus.yml'}",
            f"--storage.tsdb.path={home / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_ready(url)
        yield url
    finally:
        server.terminate()
        server.wait(WAIT_S)


def _wait_ready(url: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        try:
            if httpx.get(f"{url}/-/ready").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError("prometheus did not start")
