"""Prompt encodings by name."""

from collections.abc import Callable

from rorqual_runtime.errors import ServingError

from rorqual_recipe.encodings.base import PromptEncoding
from rorqual_recipe.encodings.chat_template import ChatTemplateEncoding
from rorqual_recipe.model_files import ModelFiles

ENCODINGS: dict[str, Callable[[ModelFiles], PromptEncoding]] = {
    "chat-template": ChatTemplateEncoding.from_model,
}


class UnknownEncoding(ServingError):
    """The settings name a prompt encoding that does not exist."""

    def __init__(self, name: str) -> None:
        self.name = name
        known = ", ".join(sorted(ENCODINGS))
        super().__init__(f"unknown prompt encoding {name!r}; known: {known}")


def make_encoding(name: str, files: ModelFiles) -> PromptEncoding:
    """The encoding registered under `name`. Raises: UnknownEncoding."""
    if name not in ENCODINGS:
        raise UnknownEncoding(name)
    return ENCODINGS[name](files)
