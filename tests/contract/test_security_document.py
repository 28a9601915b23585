"""docs/security.md names tests that are there."""

from __future__ import annotations

import re

import pytest

from tests.contract.distributions import ROOT
from tests.contract.test_architecture import names_in

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
MIN_NAMED = 30


def named() -> list[tuple[str, str]]:
    return sorted(set(NAMED.findall((ROOT / "docs/security.md").read_text())))


def test_what_is_claimed_is_tested() -> None:
    assert len(named()) >= MIN_NAMED


@pytest.mark.parametrize(("path", "name"), named())
def test_a_named_test_is_there(path: str, name: str) -> None:
    assert (ROOT / path).is_file(), path
    assert name in names_in(path), f"{path} does not define {name}"
