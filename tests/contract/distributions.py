"""What the repository's distributions say about themselves."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVICES = tuple(sorted(path.parent.name for path in ROOT.glob("services/*/pyproject.toml")))
TORCH_SERVICES = frozenset({"prefill", "decode", "grammar", "vision"})
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Distribution:
    """One folder with a pyproject.toml."""

    name: str
    folder: str
    """Relative to the root, e.g. libs/runtime."""
    package: str
    dependencies: frozenset[str]
    """Those of its extras as well."""


@cache
def read_distributions() -> dict[str, Distribution]:
    """By distribution name."""
    found = {}
    for path in sorted(ROOT.glob("**/pyproject.toml")):
        folder = path.parent.relative_to(ROOT)
        if str(folder).startswith(".") and str(folder) != ".":
            continue
        project = tomllib.loads(path.read_text()).get("project")
        if project is None:
            continue
        optional = chain.from_iterable(project.get("optional-dependencies", {}).values())
        wanted = [*project["dependencies"], *optional]
        names = frozenset(_NAME.match(text)[0] for text in wanted)  # type: ignore[index]
        package = project["name"].replace("-", "_")
        found[project["name"]] = Distribution(project["name"], str(folder), package, names)
    return found


def local_closure(name: str, distributions: dict[str, Distribution]) -> set[str]:
    """Local distributions that `name` needs, itself included."""
    needed, open_names = set(), [name]
    while open_names:
        current = open_names.pop()
        if current in distributions and current not in needed:
            needed.add(current)
            open_names.extend(distributions[current].dependencies)
    return needed
