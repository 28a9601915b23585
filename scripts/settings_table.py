"""Writes docs/settings.md: every environment variable, as the settings classes declare it.

.venv/bin/python -m scripts.settings_table docs/settings.md
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings
from rorqual_runtime.settings import RuntimeSettings

SERVICES = ("gateway", "recipe", "router", "prefill", "decode", "vision", "kvmeta", "grammar", "scaler")  # fmt: skip
HEAD = """\
# Settings

Every setting is an environment variable. A wrong value stops the start and is named; so does a misspelt
variable under `rorqual up`. Sizes are in bytes, times in seconds. Lists and tables are JSON where nothing else is said.
This page is written by `scripts/settings_table.py` from the code that reads the variables.
"""
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True)
class Row:
    """One variable."""

    variable: str
    kind: str
    default: str
    description: str


def render() -> str:
    """The whole page."""
    rows = {service: dict(_rows(settings_of(service))) for service in SERVICES}
    shared = {
        variable: [service for service in SERVICES if variable in rows[service]]
        for variable in sorted(set().union(*rows.values()))
    }
    several = {variable: users for variable, users in shared.items() if len(users) > 1}
    parts = [HEAD, "## Every service\n", _table(dict(_rows(RuntimeSettings)).values())]
    parts += ["## More than one\n", _shared_table(rows, several)]
    for service in SERVICES:
        own = [row for variable, row in rows[service].items() if variable not in several]
        parts += [f"## {service}\n", _table(own)]
    return "\n".join(parts)


def settings_of(service: str) -> type[BaseSettings]:
    """The class that reads the service's own variables."""
    module = importlib.import_module(f"rorqual_{service}.settings")
    prefix = f"RORQUAL_{service.upper()}_"
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, BaseSettings)
        and value.model_config.get("env_prefix") == prefix
    )
    return found


def _rows(settings: type[BaseSettings]) -> Iterator[tuple[str, Row]]:
    prefix = str(settings.model_config.get("env_prefix", ""))
    for name, field in settings.model_fields.items():
        alias = field.validation_alias
        variable = alias if isinstance(alias, str) else f"{prefix}{name}".upper()
        kind = _kind(field.annotation)
        yield variable, Row(variable, kind, _default(field, variable), _escaped(field.description))


def _kind(annotation: Any) -> str:
    """What may be written, in a word or as the values there are."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _kind(next(one for one in get_args(annotation) if one is not type(None)))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if origin is not None:
        return {"dict": "table", "tuple": "list", "list": "list"}[origin.__name__]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{member.value}`" for member in annotation)
    if annotation in (str, SecretStr):
        return "text"
    words = {bool: "true, false", int: "whole number", float: "number", Path: "path"}
    return words[annotation]


def _escaped(text: str | None) -> str:
    """For a cell of a table."""
    return (text or "").replace("<", "&lt;").replace("|", "\\|")


def _default(field: FieldInfo, variable: str) -> str:
    if field.is_required():
        return "none: must be set"
    if field.default_factory is not None:
        return "see right"
    value = field.default
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value in ("", (), {}):
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if isinstance(value, int | float):
        return _bytes(int(value)) if variable.endswith("_BYTES") else f"{value:.9g}"
    return f"`{value}`"


def _bytes(value: int) -> str:
    """With the size in words where it is a round one."""
    for size, unit in _UNITS:
        if value >= size and value % size == 0:
            return f"{value} ({value // size} {unit})"
    return str(value)


def _table(rows: Any) -> str:
    lines = ["| variable | default | takes | |", "|---|---|---|---|"]
    lines += [f"| `{r.variable}` | {r.default} | {r.kind} | {r.description} |" for r in rows]
    return "\n".join(lines) + "\n"


def _shared_table(rows: dict[str, dict[str, Row]], several: dict[str, list[str]]) -> str:
    lines = ["| variable | default | takes | read by | |", "|---|---|---|---|---|"]
    for variable, users in several.items():
        row = rows[users[0]][variable]
        lines.append(f"| `{variable}` | {row.default} | {row.kind} | {', '.join(users)} | {row.description} |")  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
