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
_OUR_NAMES = {
    "thinking_start": "think_open",
    "thinking_end": "think_close",
    "latest_reminder": "reminder",
}
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
        spellings = _spellings(options, profile["tokens"])
        tokenizer = _respelled(self._tokenizer, profile["tokens"], spellings)
        profile["tokens"].update(spellings)
        _apply(options, profile)
        directory.mkdir()
        config = {"max_position_embeddings": CONTEXT_TOKENS}
        if version != "v4":
            config["vision_config"] = {}
        _write(directory / PROFILE_FILE, profile)
        _write(directory / "config.json", config)
        _write(directory / "tokenizer.json", tokenizer)
        return load_served_model(RecipeSettings(model_dir=directory))


def _spellings(options: Mapping[str, Any], tokens: Mapping[str, str]) -> dict[str, str]:
    """Other spellings of the tokens that a version's prompts are made of."""
    given = options.get("special_tokens", {}).items()
    named = {_OUR_NAMES.get(name, name): spelling for name, spelling in given}
    return {name: spelling for name, spelling in named.items() if name in tokens}


def _apply(options: Mapping[str, Any], profile: dict[str, Any]) -> None:
    """Options of the reference's conversion that are data of a profile."""
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
