"""Classes of tokens: those whose text is the same but for case, accents, width and spaces."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.normalizers import NFD, NFKC, Lowercase, Replace, Sequence, Strip, StripAccents

from rorqual_engine.errors import CorruptModel
from rorqual_engine.models.deepseek.checkpoint import DeepseekWeights

STORED = "engram.token_map"
"""Where a checkpoint may hold the classes itself."""
_SPACE = "\ue000"
"""Stands for a text that is a space only, while spaces around texts are taken away."""


def token_classes(weights: DeepseekWeights, vocab_size: int) -> torch.Tensor:
    """int64 [vocab_size], on the CPU: from the checkpoint, else from its tokenizer.

    Raises: CorruptModel.
    """
    if STORED in weights:
        return weights.whole_numbers(STORED, (vocab_size,), vocab_size)
    path = weights.model_dir / "tokenizer.json"
    if not path.is_file():
        reason = f"Engram needs tensor {STORED} or a tokenizer.json"
        raise CorruptModel(weights.model_dir, reason)
    return torch.tensor(classes_of(_read(path), vocab_size))


def classes_of(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """Numbered in the order of the tokens that first have them.

    A token whose bytes are no text by themselves is a class of its own, and so is an id that the
    tokenizer does not have.
    """
    fold = _folding()
    numbers: dict[tuple[str, str], int] = {}
    classes = []
    for token_id in range(vocab_size):
        classes.append(numbers.setdefault(_key(tokenizer, token_id, fold), len(numbers)))
    return classes


def _key(tokenizer: Tokenizer, token_id: int, fold: Sequence) -> tuple[str, str]:
    token = tokenizer.id_to_token(token_id)
    if token is None:
        return "none", str(token_id)
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    if "\ufffd" in text:
        return "text", token
    return "text", fold.normalize_str(text) or text


def _folding() -> Sequence:
    return Sequence(
        [
            NFKC(),
            NFD(),
            StripAccents(),
            Lowercase(),
            Replace(Regex(r"[ \t\r\n]+"), " "),
            Replace(Regex(r"^ $"), _SPACE),
            Strip(),
            Replace(_SPACE, " "),
        ]
    )


def _read(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as err:  # the library raises Exception itself
        raise CorruptModel(path, str(err)) from err
