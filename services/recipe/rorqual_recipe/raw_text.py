"""Text that a client wrote as a whole prompt: what it spells as special tokens is meant as such.

Nothing of this is used for messages: there only the prompt encoding places special tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rorqual_recipe.encodings.base import Segment, Special
from rorqual_recipe.encodings.special_splitter import SpecialSplitter
from rorqual_recipe.model_files import AddedToken, ModelFiles


class RawText:
    """Cuts a text at its special tokens, between those that the tokenizer puts around a text."""

    def __init__(
        self,
        added_tokens: Sequence[AddedToken],
        before: Sequence[Special] = (),
        behind: Sequence[Special] = (),
    ) -> None:
        self._splitter = SpecialSplitter(added_tokens)
        self._before = tuple(before)
        self._behind = tuple(behind)

    @classmethod
    def from_model(cls, files: ModelFiles) -> "RawText":
        """As the tokenizer.json of a model says; old ones leave it to tokenizer_config.json."""
        template = _single_template(files.tokenizer.get("post_processor"))
        if template is not None:
            return cls(files.added_tokens, *_around(*template))
        if files.tokenizer_config.get("add_bos_token") is True:
            bos = files.named_tokens.get("bos_token")
            first = [t for t in files.added_tokens if t.content == bos]
            return cls(files.added_tokens, [Special(t.token_id, t.content) for t in first])
        return cls(files.added_tokens)

    def segments(self, text: str, *, add_special_tokens: bool = True) -> list[Segment]:
        """The text as segments of a prompt."""
        cut = self._splitter.split(text, "")
        return [*self._before, *cut, *self._behind] if add_special_tokens else cut


_Template = tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]


def _single_template(processor: Mapping[str, Any] | None) -> _Template | None:
    """Pieces around one text, and the special tokens they name."""
    if processor is None:
        return None
    if processor.get("type") == "TemplateProcessing":
        return processor.get("single", ()), processor.get("special_tokens", {})
    inner = (_single_template(part) for part in processor.get("processors", ()))
    return next((template for template in inner if template is not None), None)


def _around(
    pieces: Sequence[Mapping[str, Any]], tokens: Mapping[str, Any]
) -> tuple[list[Special], list[Special]]:
    before: list[Special] = []
    behind: list[Special] = []
    side = before
    for piece in pieces:
        if "Sequence" in piece:
            side = behind
        elif "SpecialToken" in piece:
            name = piece["SpecialToken"]["id"]
            side += [Special(int(token_id), name) for token_id in tokens[name]["ids"]]
    return before, behind
