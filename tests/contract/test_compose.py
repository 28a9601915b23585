"""compose.yaml and the Dockerfiles agree with the services' settings and dependencies."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings
from rorqual_cli.servers import nats_binary
from rorqual_runtime.identities.issue import issue
from rorqual_runtime.settings import RuntimeSettings, variables_of

from scripts.dashboards import DASHBOARDS, render
from tests.contract.distributions import (
    ROOT,
    SERVICES,
    TORCH_SERVICES,
    local_closure,
    read_distributions,
)

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
BLOCKS: dict[str, Any] = COMPOSE["services"]
WATCHERS = {"prometheus", "grafana", "jaeger"}
OTHERS = {"nats", "redis", "otel-collector", "model", "secrets", *WATCHERS}


def settings_of(service: str) -> type[BaseSettings]:
    module = importlib.import_module(f"rorqual_{service}.settings")
    prefix = f"RORQUAL_{service.upper()}_"
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, BaseSettings)
        and value.model_config.get("env_prefix") == prefix
    ]
    assert len(found) == 1, f"{module.__name__} has {len(found)} settings classes for {prefix}"
    return found[0]


def test_there_is_one_block_a_service_and_one_for_each_server() -> None:
    assert set(SERVICES) == BLOCKS.keys() - OTHERS
    assert len(SERVICES) == 9


def test_the_older_docker_compose_reads_it_too() -> None:
    """1.29, which Debian has, refuses a file with any other key at its top."""
    known = {"services", "volumes", "networks", "secrets", "configs"}
    for file in ("compose.yaml", "compose.gpu.yaml"):
        keys = set(yaml.safe_load((ROOT / file).read_text()))
        assert not {key for key in keys - known if not key.startswith("x-")}


@pytest.mark.parametrize("service", SERVICES)
def test_every_variable_of_a_block_is_a_setting_of_that_service(service: str) -> None:
    given = {name for name in BLOCKS[service]["environment"] if name.startswith("RORQUAL_")}
    known = variables_of(settings_of(service)) | variables_of(RuntimeSettings)
    assert given <= known, f"unknown to {service}: {sorted(given - known)}"


@pytest.mark.parametrize("service", SERVICES)
def test_the_values_of_a_block_are_accepted(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in BLOCKS[service]["environment"].items():
        if value is not None:  # else what the caller has set
            monkeypatch.setenv(name, str(value))
    settings_of(service)()
    assert RuntimeSettings().nats_url == "nats://nats:4222"


@pytest.mark.parametrize("service", SERVICES)
def test_a_block_is_bounded_probed_and_starts_after_what_it_needs(service: str) -> None:
    block = BLOCKS[service]
    assert re.fullmatch(r"\d+[mg]", block["mem_limit"])
    assert block["healthcheck"]["test"][-1] == service
    assert block["depends_on"]["nats"]["condition"] == "service_healthy"
    for name, needed in block["depends_on"].items():
        if "healthcheck" in BLOCKS[name] and not BLOCKS[name]["healthcheck"].get("disable"):
            assert needed["condition"] == "service_healthy", name
    assert block["build"]["context"] == "."
    assert block["build"]["dockerfile"] == f"services/{service}/Dockerfile"
    assert block["image"].startswith(f"rorqual/{service}:")
    assert block["read_only"] and block["cap_drop"] == ["ALL"]
    assert all(mount.split(":")[0] in COMPOSE["volumes"] for mount in block["volumes"])


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_installs_exactly_what_its_service_needs(service: str) -> None:
    text = (ROOT / f"services/{service}/Dockerfile").read_text()
    distributions = read_distributions()
    needed = {
        distributions[name].folder for name in local_closure(f"rorqual-{service}", distributions)
    }
    installs = [line for line in text.splitlines() if "pip install" in line]
    assert ["-c constraints.txt" in line for line in installs] == [True, False]
    assert "--no-deps" in installs[1]
    for install in installs:  # all local folders in one command
        assert set(re.findall(r" \./([^\s[]+)", install)) == needed
    assert set(re.findall(r"^COPY (\S+) \1$", text, re.MULTILINE)) == needed
    assert set(re.findall(r"^COPY (\S+)/pyproject.toml \1/$", text, re.MULTILINE)) == needed
    assert f'"-m", "rorqual_{service}"' in text


def test_the_images_are_made_alike_with_or_without_an_engine() -> None:
    texts: dict[bool, set[str]] = {}
    for service in SERVICES:
        text = (ROOT / f"services/{service}/Dockerfile").read_text().replace(service, "SERVICE")
        last = text[text.index("FROM ${PYTHON_IMAGE}\n") :]
        texts.setdefault("libs/engine" in text, set()).add(last)
    assert {is_engine: len(found) for is_engine, found in texts.items()} == {True: 1, False: 1}


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_runs_without_root(service: str) -> None:
    text = (ROOT / f"services/{service}/Dockerfile").read_text()
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == ["rorqual"]


@pytest.mark.parametrize("service", SERVICES)
def test_only_some_services_install_torch(service: str) -> None:
    distributions = read_distributions()
    needed = local_closure(f"rorqual-{service}", distributions)
    third_party = set().union(*(distributions[name].dependencies for name in needed))
    assert bool({"torch", "xgrammar"} & third_party) == (service in TORCH_SERVICES)


def test_the_override_for_gpus_changes_what_it_names_only() -> None:
    override = yaml.safe_load((ROOT / "compose.gpu.yaml").read_text())["services"]
    assert override.keys() <= BLOCKS.keys()
    for service in override.keys() - OTHERS:
        for name in override[service]["environment"]:
            assert name in variables_of(settings_of(service)), name
            assert BLOCKS[service]["environment"][name] == "cpu"


def test_the_collector_listens_where_the_services_send() -> None:
    config = yaml.safe_load((ROOT / "deploy/otel-collector.yaml").read_text())
    port = config["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].rpartition(":")[2]
    endpoint = COMPOSE["x-environment"]["RORQUAL_OTLP_ENDPOINT"]
    assert endpoint == f"http://otel-collector:{port}"
    for pipeline in config["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= config[kind].keys()


def test_the_collector_starts_with_the_pauses_it_is_given() -> None:
    """It refuses tries that end before the longest pause, which is 30 s by default."""
    config = yaml.safe_load((ROOT / "deploy/otel-collector.yaml").read_text())
    retry = config["exporters"]["otlp/jaeger"]["retry_on_failure"]
    names = ("initial_interval", "max_interval", "max_elapsed_time")
    pauses_s = [float(retry[name].removesuffix("s")) for name in names]
    assert pauses_s == sorted(pauses_s)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_sees_the_files_of_its_own_identity_only(service: str) -> None:
    folder = COMPOSE["x-environment"]["RORQUAL_SECRETS_DIR"]
    seen = [mount for mount in BLOCKS[service]["volumes"] if mount.startswith("secrets")]
    assert seen == [f"secrets-{service}:{folder}:ro"]
    assert f"secrets-{service}:/secrets/{service}" in BLOCKS["secrets"]["volumes"]
    assert {mount.partition(":")[0] for mount in BLOCKS["secrets"]["volumes"]} < COMPOSE[
        "volumes"
    ].keys()


def test_nats_accepts_its_configuration(tmp_path: Path) -> None:
    issue(tmp_path / "issued")
    (tmp_path / "issued/nats").rename(tmp_path / "secrets")
    shutil.copy(ROOT / "deploy/nats.conf", tmp_path / "nats.conf")
    command = [nats_binary(), "-t", "-c", str(tmp_path / "nats.conf")]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_who_watches_is_a_profile_and_finds_every_service() -> None:
    for name in WATCHERS:
        assert BLOCKS[name]["profiles"] == ["observability"]
        assert all(port.startswith("127.0.0.1:") for port in BLOCKS[name]["ports"])
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (found,) = config["scrape_configs"][0]["dns_sd_configs"]
    assert set(found["names"]) == set(SERVICES)
    assert str(found["port"]) == COMPOSE["x-environment"]["RORQUAL_METRICS_PORT"]


def test_the_dashboards_are_those_that_the_script_writes() -> None:
    for name in DASHBOARDS:
        assert (ROOT / f"deploy/grafana/dashboards/{name}.json").read_text() == render(name)
