"""Prompt encodings by name."""

from collections.abc import Callable

from rorqual_runtime.errors import ServingError

from rorqual_recipe.encodings.base import PromptEncoding
from rorqual_recipe.encodings.chat_template import ChatTemplateEncoding
from rorqual_recipe.encodings.deepseek import DeepSeekEncoding
from rorqual_recipe.encodings.deepseek_layout import V4, V41
from rorqual_recipe.model_files import ModelFiles
from rorqual_recipe.profile import PromptProfile, read_profile

AUTO = "auto"
_TEMPLATE = "chat-template"
MakeEncoding = Callable[[ModelFiles, PromptProfile | None], PromptEncoding]


def _chat_template(files: ModelFiles, _profile: PromptProfile | None) -> PromptEncoding:
    return ChatTemplateEncoding.from_model(files)


def _deepseek_v4(files: ModelFiles, profile: PromptProfile | None) -> PromptEncoding:
    return DeepSeekEncoding.from_model(V4, files, profile)


def _deepseek_v41(files: ModelFiles, profile: PromptProfile | None) -> PromptEncoding:
    return DeepSeekEncoding.from_model(V41, files, profile)


ENCODINGS: dict[str, MakeEncoding] = {
    _TEMPLATE: _chat_template,
    V4.name: _deepseek_v4,
    V41.name: _deepseek_v41,
}


class UnknownEncoding(ServingError):
    """The settings, or a profile, name a prompt encoding that does not exist."""

    def __init__(self, name: str) -> None:
        self.name = name
        known = ", ".join([AUTO, *sorted(ENCODINGS)])
        super().__init__(f"unknown prompt encoding {name!r}; known: {known}")


def make_encoding(name: str, files: ModelFiles) -> PromptEncoding:
    """The encoding registered under `name`; `auto`: the profile's, or else the chat template.

    Raises: UnknownEncoding, BadModelDirectory.
    """
    profile = read_profile(files.directory)
    if name == AUTO:
        name = profile.encoding if profile else _TEMPLATE
    if name not in ENCODINGS:
        raise UnknownEncoding(name)
    return ENCODINGS[name](files, profile)
