"""The files of a model directory that recipe reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rorqual_runtime.errors import ServingError


class BadModelDirectory(ServingError):
    """The model directory can't be served; names the file and what is wrong with it."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """An entry of the tokenizer's added vocabulary."""

    token_id: int
    content: str
    special: bool
    lstrip: bool
    rstrip: bool


@dataclass(frozen=True)
class ModelFiles:
    """Parsed text files of one model directory; weights are not touched."""

    directory: Path
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    generation_config: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def added_tokens(self) -> tuple[AddedToken, ...]:
        """Added vocabulary in the order of the file."""
        return tuple(
            AddedToken(
                token_id=int(entry["id"]),
                content=str(entry["content"]),
                special=bool(entry.get("special", False)),
                lstrip=bool(entry.get("lstrip", False)),
                rstrip=bool(entry.get("rstrip", False)),
            )
            for entry in self.tokenizer.get("added_tokens", ())
        )

    @property
    def chat_template(self) -> str:
        """Source of the model's default chat template. Raises: BadModelDirectory."""
        path = self.directory / "chat_template.jinja"
        template = self.tokenizer_config.get("chat_template")
        if template is None and path.exists():
            return path.read_text(encoding="utf-8")
        if isinstance(template, list):
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default", next(iter(named.values()), None))
        if not isinstance(template, str):
            raise BadModelDirectory(
                self.directory / "tokenizer_config.json", "no chat_template in it"
            )
        return template

    @property
    def named_tokens(self) -> dict[str, str]:
        """bos_token, eos_token and the like, as chat templates know them."""
        named = {}
        for key, value in self.tokenizer_config.items():
            if key.endswith("_token"):
                content = value.get("content") if isinstance(value, Mapping) else value
                if isinstance(content, str):
                    named[key] = content
        return named


def read_model_files(directory: Path) -> ModelFiles:
    """Read a model directory. Raises: BadModelDirectory naming the missing or broken file."""
    return ModelFiles(
        directory=directory,
        manifest=_read_json(directory / "rorqual.json", optional=True),
        config=_read_json(directory / "config.json"),
        tokenizer_config=_read_json(directory / "tokenizer_config.json", optional=True),
        tokenizer=_read_json(directory / "tokenizer.json"),
        generation_config=_read_json(directory / "generation_config.json", optional=True),
    )


def _read_json(path: Path, *, optional: bool = False) -> Mapping[str, Any]:
    if optional and not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadModelDirectory(path, "missing") from None
    except (OSError, ValueError) as err:
        raise BadModelDirectory(path, f"unreadable: {err}") from err
    if not isinstance(content, dict):
        raise BadModelDirectory(path, "not a JSON object")
    return content
