"""Who may import whom, beyond what `make lint` checks by name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.contract.distributions import ROOT, SERVICES, local_closure, read_distributions

IMPURE = {"time", "random", "secrets", "os", "logging", "asyncio", "threading", "socket", "io"}


def imported_modules(path: Path) -> Iterator[str]:
    """Top-level names of everything a file imports, at any depth."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def sources(folder: str) -> list[Path]:
    return [
        p for p in (ROOT / folder).rglob("*.py") if "_pb2" not in p.name and "build" not in p.parts
    ]


def test_policy_needs_the_pure_standard_library_only() -> None:
    files = sources("libs/policy/rorqual_policy")
    assert files
    for path in files:
        for name in imported_modules(path):
            assert name == "rorqual_policy" or name in sys.stdlib_module_names, f"{path}: {name}"
            assert name not in IMPURE, f"{path} imports {name}"


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_imports_only_what_its_distribution_declares(service: str) -> None:
    """An import that works here by chance would fail in the service's own image."""
    distributions = read_distributions()
    declared = distributions[f"rorqual-{service}"].dependencies
    allowed = {f"rorqual_{service}"} | {
        distribution.package for name, distribution in distributions.items() if name in declared
    }
    for path in sources(f"services/{service}/rorqual_{service}"):
        local = {name for name in imported_modules(path) if name.startswith("rorqual_")}
        assert local <= allowed, f"{path}: {sorted(local - allowed)}"


@pytest.mark.parametrize("service", SERVICES)
def test_only_convert_knows_generated_messages(service: str) -> None:
    for path in sources(f"services/{service}/rorqual_{service}"):
        if path.name != "convert.py":
            assert "rorqual_proto" not in imported_modules(path), path


@pytest.mark.parametrize("name", sorted(read_distributions()))
def test_third_party_imports_are_declared(name: str) -> None:
    """By the distribution itself or by a local one it needs: nothing is there by luck."""
    distributions = read_distributions()
    declared = {
        normalised(dependency)
        for local in local_closure(name, distributions)
        for dependency in distributions[local].dependencies
    }
    providers = packages_distributions()
    folder = f"{distributions[name].folder}/{distributions[name].package}"
    for path in sources(folder):
        for module in imported_modules(path):
            if module in sys.stdlib_module_names or module.startswith("rorqual_"):
                continue
            found = {normalised(provider) for provider in providers.get(module, [])}
            assert found & declared, f"{path} imports {module}, declared nowhere"


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_import_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run(
        [lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stdout
    assert " 0 broken" in run.stdout
