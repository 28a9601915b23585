"""The model's own Jinja chat template, rendered so that message text can't place special tokens.

A special token is found in the template's output by its spelling. To keep message text out of that
search, a private-use character that occurs nowhere in the conversation (the marker) is put behind
every character that any special token starts with, in every string a client controls, and in front
of a string that could complete a spelling begun by the template. No spelling can then be matched
inside message text, not even one that a template forms by deleting from it, and filters such as
`trim` still see the same white space. The marker is removed from the text between special tokens.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from jinja2 import TemplateError

from rorqual_recipe.conversation import Conversation, Message, SamplingOptions, TextPart
from rorqual_recipe.encodings.base import RenderedPrompt, Segment, Special, Text
from rorqual_recipe.encodings.template_sandbox import (
    TemplateRefusal,
    compile_template,
    render_bounded,
)
from rorqual_recipe.model_files import AddedToken, ModelFiles
from rorqual_recipe.problems import Problem, RequestRefused

PART_SEPARATOR = "\n\n"
_TEMPLATE_OWN_CHARS = 1 << 20  # what a template may add to the messages
_PRIVATE_RANGES = ((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))


class ChatTemplateEncoding:
    """Prompt encoding `chat-template`."""

    def __init__(
        self, template: str, added_tokens: Sequence[AddedToken], named_tokens: dict[str, str]
    ) -> None:
        self._template_source = template
        self._template = compile_template(template)
        self._named_tokens = named_tokens
        self._splitter = SpecialSplitter(added_tokens)

    @classmethod
    def from_model(cls, files: ModelFiles) -> "ChatTemplateEncoding":
        """The encoding of a model directory. Raises: BadModelDirectory without a template."""
        return cls(files.chat_template, files.added_tokens, files.named_tokens)

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """See PromptEncoding.render."""
        texts = [text for message in conversation.messages for text in _client_texts(message)]
        marker = unused_character([self._template_source, *texts])
        messages = [self._template_message(m, marker) for m in conversation.messages]
        try:
            output = render_bounded(
                self._template,
                {"messages": messages, "add_generation_prompt": True, **self._named_tokens},
                max_chars=8 * sum(map(len, texts)) + _TEMPLATE_OWN_CHARS,
            )
        except TemplateRefusal as err:
            raise RequestRefused([Problem("messages", str(err).replace(marker, ""))]) from err
        except (TemplateError, TypeError, ValueError, KeyError, IndexError) as err:
            message = f"the model's chat template can't render these messages: {err}"
            raise RequestRefused([Problem("messages", message.replace(marker, ""))]) from err
        return RenderedPrompt(self._splitter.split(output, marker))

    def effective_sampling(
        self, conversation: Conversation, sampling: SamplingOptions
    ) -> tuple[SamplingOptions, tuple[str, ...]]:
        """See PromptEncoding.effective_sampling: what the caller asks for."""
        return sampling, ()

    def _template_message(self, message: Message, marker: str) -> dict[str, object]:
        content = PART_SEPARATOR.join(_texts(message))
        fields: dict[str, object] = {
            "role": message.role.value,
            "content": self._splitter.mark(content, marker),
        }
        if message.name is not None:
            fields["name"] = self._splitter.mark(message.name, marker)
        if message.tool_call_id is not None:
            fields["tool_call_id"] = self._splitter.mark(message.tool_call_id, marker)
        return fields


def _texts(message: Message) -> Iterator[str]:
    return (part.text for part in message.parts if isinstance(part, TextPart))


def _client_texts(message: Message) -> Iterable[str]:
    yield from _texts(message)
    yield message.name or ""
    yield message.tool_call_id or ""


def unused_character(texts: Sequence[str]) -> str:
    """A private-use character that occurs in none of the texts; one pass over them a range.

    Raises: RequestRefused when every such character is taken.
    """
    texts = [text for text in texts if not text.isascii()]
    for first, last in _PRIVATE_RANGES:
        pattern = re.compile(f"[{chr(first)}-{chr(last)}]")
        used = {char for text in texts for char in set(pattern.findall(text))}
        for code in range(first, last + 1):
            if chr(code) not in used:
                return chr(code)
    raise RequestRefused([Problem("messages", "the text uses every private-use character")])


class SpecialSplitter:
    """Marks client text, and cuts rendered text at the special tokens of a template."""

    def __init__(self, added_tokens: Sequence[AddedToken]) -> None:
        tokens = [token for token in added_tokens if token.content.strip()]
        self._by_content = {token.content: token for token in tokens}
        self._first_chars = sorted({token.content[0] for token in tokens})
        self._tails = frozenset(
            token.content[cut:] for token in tokens for cut in range(1, len(token.content))
        )
        self._max_tail = max(map(len, self._tails), default=0)
        longest_first = sorted(self._by_content, key=len, reverse=True)
        alternatives = "|".join(self._pattern(self._by_content[text]) for text in longest_first)
        self._pattern_re = re.compile(alternatives) if alternatives else None

    @staticmethod
    def _pattern(token: AddedToken) -> str:
        left, right = r"\s*" if token.lstrip else "", r"\s*" if token.rstrip else ""
        return f"{left}{re.escape(token.content)}{right}"

    def mark(self, text: str, marker: str) -> str:
        """Client text in which no special token's spelling can match, nor be completed."""
        body = text.lstrip()
        if self._completes_a_spelling(body):
            text = text[: len(text) - len(body)] + marker + body
        for first in self._first_chars:
            text = text.replace(first, first + marker)
        return text

    def _completes_a_spelling(self, text: str) -> bool:
        longest = min(len(text), self._max_tail)
        return any(text[:length] in self._tails for length in range(1, longest + 1))

    def split(self, output: str, marker: str) -> list[Segment]:
        """Segments of rendered text; empty texts are left out."""
        segments: list[Segment] = []
        start = 0
        for match in self._pattern_re.finditer(output) if self._pattern_re else ():
            _append_text(segments, output[start : match.start()], marker)
            token = self._by_content.get(match.group()) or self._by_content[match.group().strip()]
            segments.append(Special(token.token_id, token.content))
            start = match.end()
        _append_text(segments, output[start:], marker)
        return segments


def _append_text(segments: list[Segment], text: str, marker: str) -> None:
    cleaned = text.replace(marker, "")
    if cleaned:
        segments.append(Text(cleaned))
