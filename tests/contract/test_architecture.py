"""ARCHITECTURE.md points at code that is there."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.contract.distributions import ROOT

POINTER = re.compile(r"`([\w./-]+\.py):([A-Za-z_][\w.]*)`")
DOCUMENT = ROOT / "ARCHITECTURE.md"
MIN_POINTERS = 12


def pointers() -> list[tuple[str, str]]:
    text = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    return sorted(set(POINTER.findall(text)))


@cache
def names_in(path: str) -> frozenset[str]:
    """Functions, classes and methods (`Class.method`) that a file defines at its top."""
    names = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names.update(
                f"{node.name}.{child.name}"
                for child in node.body
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            )
    return frozenset(names)


def test_a_request_can_be_followed_by_a_dozen_pointers() -> None:
    assert len(pointers()) >= MIN_POINTERS


@pytest.mark.parametrize(("path", "name"), pointers())
def test_a_pointer_leads_somewhere(path: str, name: str) -> None:
    assert (ROOT / path).is_file(), path
    methods = {full.rpartition(".")[2] for full in names_in(path)}
    assert name in names_in(path) or name in methods, f"{path} does not define {name}"
