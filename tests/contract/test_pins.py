"""One version of everything, on every machine."""

from __future__ import annotations

import re

from tests.contract.distributions import ROOT, read_distributions
from tests.contract.test_imports import normalised

PIN = re.compile(r"^[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+$")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    assert all(PIN.match(line) for line in lines), "exact pins only"
    return {normalised(name): version for name, version in (line.split("==") for line in lines)}


def test_every_dependency_is_pinned() -> None:
    distributions = read_distributions()
    wanted = set().union(*(d.dependencies for d in distributions.values())) - distributions.keys()
    tools = [
        line
        for line in (ROOT / "requirements-dev.txt").read_text().splitlines()
        if line and not line.startswith(("#", "-"))
    ]
    missing = {normalised(name) for name in (*wanted, *tools)} - pins().keys()
    assert not missing, f"append to constraints.txt: {sorted(missing)}"


def test_torch_stays_where_it_is() -> None:
    assert pins()["torch"] == "2.13.0"


def test_every_distribution_is_installed_in_one_go() -> None:
    text = (ROOT / "requirements-dev.txt").read_text()
    installed = set(re.findall(r"^-e \./(\S+)$", text, re.MULTILINE))
    assert installed == {d.folder for d in read_distributions().values()}
