"""Models for the cases: the reference's own prompt profile over the tokenizer of the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rorqual_cli.deepseek_profile import VERSIONS, deepseek_profile
from rorqual_recipe.model import ServedModel, load_served_model
from rorqual_recipe.profile import PROFILE_FILE
from rorqual_recipe.settings import RecipeSettings

CONTEXT_TOKENS = 1 << 30
VERSION_OF = {name: version for version, (name, _) in VERSIONS.items()}


@cache
def reference_profile(version: str) -> Mapping[str, Any]:
    """The profile that `rorqual profile import deepseek` writes."""
    return deepseek_profile(version)


class CaseModels:
    """Served models by version and by the options of a case; kept until closed."""

    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = json.loads(tokenizer.read_text(encoding="utf-8"))
        self._folder = TemporaryDirectory(prefix="rorqual-vectors-")
        self._models: dict[str, ServedModel] = {}

    def close(self) -> None:
        """Removes what was written."""
        self._folder.cleanup()

    def get(self, name: str, options: Mapping[str, Any]) -> ServedModel:
        """The model served under `name`; an unknown name gets the newest one, named otherwise."""
        aliases = {**VERSION_OF, **options.get("model_aliases", {})}
        version = aliases.get(name, "v4.1")
        key = json.dumps([version, options], sort_keys=True)
        if key not in self._models:
            directory = Path(self._folder.name) / str(len(self._models))
            self._models[key] = self._make(directory, version, options)
        return replace(self._models[key], model_id=name if name in aliases else "another")

    def _make(self, directory: Path, version: str, options: Mapping[str, Any]) -> ServedModel:
        profile = json.loads(json.dumps(reference_profile(version)))
        spellings = options.get("special_tokens", {})
        tokenizer = _respelled(self._tokenizer, profile["tokens"], spellings)
        _apply(options, profile)
        directory.mkdir()
        config = {"max_position_embeddings": CONTEXT_TOKENS}
        if version != "v4":
            config["vision_config"] = {}
        _write(directory / PROFILE_FILE, profile)
        _write(directory / "config.json", config)
        _write(directory / "tokenizer.json", tokenizer)
        return load_served_model(RecipeSettings(model_dir=directory))


def _apply(options: Mapping[str, Any], profile: dict[str, Any]) -> None:
    """Options of the reference's conversion that are data of a profile."""
    profile["tokens"].update(options.get("special_tokens", {}))
    profile["thinks_by_default"] = options.get("default_thinking_mode", True)
    for mode, rules in profile["sampling"].items():
        bound = "non_thinking" if mode == "plain" else "thinking"
        key = f"{bound}_max_tokens_upper_bound"
        rules["max_tokens_bound"] = options.get(key, rules["max_tokens_bound"])


def _respelled(
    tokenizer: dict[str, Any], tokens: Mapping[str, str], spellings: Mapping[str, str]
) -> dict[str, Any]:
    renamed = {tokens[name]: spelling for name, spelling in spellings.items()}
    added = [
        {**entry, "content": renamed.get(entry["content"], entry["content"])}
        for entry in tokenizer["added_tokens"]
    ]
    return {**tokenizer, "added_tokens": added}


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
