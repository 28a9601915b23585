"""What a prompt encoding is: conversation in, text and special tokens out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rorqual_recipe.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Text:
    """Ordinary text: encoded without added vocabulary, whatever it looks like."""

    text: str


@dataclass(frozen=True, slots=True)
class Special:
    """One token that only the renderer can place."""

    token_id: int
    content: str


Segment = Text | Special


class PromptEncoding(Protocol):
    """One way to write a conversation for a model."""

    def render(self, conversation: Conversation) -> Sequence[Segment]:
        """The prompt as segments, ending where the answer begins.

        Raises: RequestRefused when the model's prompt format can't express the conversation.
        """
        ...
