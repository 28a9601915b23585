"""Putting a prompt together: text from anywhere, special tokens from the renderer only."""

from collections.abc import Iterable, Mapping

from rorqual_recipe.conversation import ImagePart
from rorqual_recipe.encodings.base import Image, Segment, Special
from rorqual_recipe.profile import TokenRef


class SegmentWriter:
    """Appends segments; empty texts are left out.

    tokens: the special tokens by the name that the profile gives them.
    """

    def __init__(self, tokens: Mapping[str, Special]) -> None:
        self._tokens = tokens
        self.segments: list[Segment] = []
        self.images: list[ImagePart] = []

    def text(self, text: str) -> None:
        """Ordinary text, whatever it looks like."""
        if text:
            self.segments.append(text)

    def special(self, name: str) -> None:
        """One special token."""
        self.segments.append(self._tokens[name])

    def tag(self, before: str, name: str, after: str) -> None:
        """One special token with text on both sides."""
        self.segments += (before, self._tokens[name], after)

    def fixed(self, pieces: Iterable[str | TokenRef]) -> None:
        """A fixed text of the profile."""
        for piece in pieces:
            if isinstance(piece, str):
                self.text(piece)
            else:
                self.special(piece.token)

    def image(self, part: ImagePart) -> None:
        """The place of an image."""
        token = self._tokens["image"]
        self.segments.append(Image(len(self.images), token.token_id, token.content))
        self.images.append(part)
