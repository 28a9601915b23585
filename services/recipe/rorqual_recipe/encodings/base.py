"""What a prompt encoding is: conversation in, text and special tokens out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from rorqual_recipe.conversation import Conversation, ImagePart, SamplingOptions, Tool

NO_TOOL_FORMAT = "none"
DSML_MARK = "｜DSML｜"


@dataclass(frozen=True, slots=True)
class Special:
    """One token that only the renderer can place."""

    token_id: int
    content: str


@dataclass(frozen=True, slots=True)
class Image:
    """The place of an image: index into RenderedPrompt.images, and its placeholder token."""

    index: int
    token_id: int
    content: str


Segment = str | Special | Image
"""A str is ordinary text: encoded without added vocabulary, whatever it looks like. Neighbouring
ones are one text to the tokenizer."""


class AnswerStage(StrEnum):
    """Where the answer's first token stands. A continuation keeps leading line breaks."""

    CONTENT = "content"
    REASONING = "reasoning"
    CONTENT_CONTINUATION = "content_continuation"
    REASONING_CONTINUATION = "reasoning_continuation"

    @property
    def thinks(self) -> bool:
        """True when the answer begins with reasoning."""
        return self in (AnswerStage.REASONING, AnswerStage.REASONING_CONTINUATION)


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt, and how its answer is to be read.

    stage: CONTENT although the model thinks = it opens its reasoning by itself.
    thinks: the conversation is in thinking mode, even where the answer continues content.
    starts_in_tool_calls: the prompt ends inside an opened block of tool calls.
    tool_format: the grammar of tool calls, `none` when the answer may hold no call.
    tools: what the answer may call, by the name it is printed under.
    reasoning_marks: spellings that open and close reasoning, None for a model without.
    images: what the Image segments refer to, in order.
    default_max_tokens: length of an answer whose client names none; None = the service's.
    dsml_mark: spelling of the token in every DSML tag.
    """

    segments: Sequence[Segment]
    stage: AnswerStage = AnswerStage.CONTENT
    thinks: bool = False
    starts_in_tool_calls: bool = False
    tool_format: str = NO_TOOL_FORMAT
    tools: Mapping[str, Tool] = field(default_factory=dict)
    reasoning_marks: tuple[str, str] | None = None
    images: tuple[ImagePart, ...] = ()
    default_max_tokens: int | None = None
    warnings: tuple[str, ...] = ()
    dsml_mark: str = DSML_MARK


class PromptEncoding(Protocol):
    """One way to write a conversation for a model.

    replaces_images: images may come though the model sees none; a text stands in their place.
    own_tokens: spellings of tokens that nothing but the renderer may place.
    """

    replaces_images: bool
    own_tokens: frozenset[str]

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """The prompt, ending where the answer begins.

        Raises: RequestRefused when the model's prompt format can't express the conversation.
        """
        ...

    def effective_sampling(
        self, conversation: Conversation, sampling: SamplingOptions
    ) -> tuple[SamplingOptions, tuple[str, ...]]:
        """Sampling as the model's makers allow it, and a warning for every wish changed.

        Raises: RequestRefused when a wish is outside the model's bounds.
        """
        ...
