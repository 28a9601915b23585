"""Prompt encodings by name."""

from collections.abc import Callable

from rorqual_recipe.encodings.base import PromptEncoding
from rorqual_recipe.encodings.chat_template import ChatTemplateEncoding
from rorqual_recipe.model_files import ModelFiles

ENCODINGS: dict[str, Callable[[ModelFiles], PromptEncoding]] = {
    "chat-template": ChatTemplateEncoding.from_model,
}


def make_encoding(name: str, files: ModelFiles) -> PromptEncoding:
    """The encoding registered under `name`. Raises: ValueError for an unknown name."""
    if name not in ENCODINGS:
        raise ValueError(f"unknown prompt encoding {name!r}; known: {', '.join(sorted(ENCODINGS))}")
    return ENCODINGS[name](files)
