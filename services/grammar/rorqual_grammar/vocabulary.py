"""The tokenizer as xgrammar wants it: one byte-level string a logit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


class VocabularyError(Exception):
    """The model directory does not describe a usable tokenizer."""


@dataclass(frozen=True)
class Vocabulary:
    """Encoded tokens by id, as long as the model's logits."""

    encoded: list[str]
    stop_token_ids: list[int]


def read_vocabulary(model_dir: Path) -> Vocabulary:
    """Vocabulary of a model directory, padded with empty strings to the model's logits.

    Raises: VocabularyError when a file is missing, unreadable or contradicts another.
    """
    from tokenizers import Tokenizer

    config = _read_config(model_dir)
    path = model_dir / "tokenizer.json"
    try:
        token_ids = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    except Exception as error:  # the tokenizers package raises bare Exception
        raise VocabularyError(f"{path}: {error}") from error
    size = config.get("vocab_size")
    if not isinstance(size, int) or size <= 0:
        raise VocabularyError(f"{model_dir / 'config.json'}: no vocab_size")
    encoded = [""] * size
    for token, token_id in token_ids.items():
        if token_id < size:
            encoded[token_id] = token
    return Vocabulary(encoded, _eos_token_ids(config, model_dir))


def _read_config(model_dir: Path) -> dict[str, object]:
    """config.json; eos ids of generation_config.json, where present, take precedence, as they do
    in the engine: a grammar is bound to both."""
    config = _read_json(model_dir / "config.json")
    if (model_dir / "generation_config.json").is_file():
        generation = _read_json(model_dir / "generation_config.json")
        if generation.get("eos_token_id") is not None:
            config["eos_token_id"] = generation["eos_token_id"]
    return config


def _eos_token_ids(config: dict[str, object], model_dir: Path) -> list[int]:
    eos = config.get("eos_token_id")
    ids = [eos] if isinstance(eos, int) else eos
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) for i in ids):
        raise VocabularyError(f"{model_dir / 'config.json'}: no eos_token_id")
    return ids


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VocabularyError(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise VocabularyError(f"{path}: not a JSON object")
    return content
