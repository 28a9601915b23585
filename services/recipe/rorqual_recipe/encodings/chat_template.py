"""The model's own Jinja chat template, rendered so that message text can't place special tokens.

How special tokens are told from text that looks like them: special_splitter.py. What a template
can't express is said in other words, with a warning: see template_messages.py.
"""

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from rorqual_recipe.conversation import (
    Conversation,
    ImagePart,
    SamplingOptions,
    Tool,
)
from rorqual_recipe.encodings.base import (
    Image,
    RenderedPrompt,
    Segment,
    Special,
)
from rorqual_recipe.encodings.message_parts import has_content
from rorqual_recipe.encodings.special_splitter import SpecialSplitter, unused_character
from rorqual_recipe.encodings.template_answer import TemplateAnswers, thinking_switches
from rorqual_recipe.encodings.template_messages import MessageValues
from rorqual_recipe.encodings.template_sandbox import (
    TemplateRefusal,
    compile_template,
    render_bounded,
)
from rorqual_recipe.encodings.template_tools import Mark, offered_tools, tool_section, tool_values
from rorqual_recipe.encodings.template_traits import AnswerHeader, TemplateTraits, probe_template
from rorqual_recipe.model_files import AddedToken, BadModelDirectory, ModelFiles
from rorqual_recipe.problems import Problem, RequestRefused

__all__ = ["ChatTemplateEncoding", "unused_character"]

_TEMPLATE_OWN_CHARS = 1 << 20  # what a template may add to the messages


class ChatTemplateEncoding:
    """Prompt encoding `chat-template`.

    image_token_id: the placeholder of an image; None for a model that sees none.
    """

    replaces_images = False

    def __init__(
        self,
        template: str,
        added_tokens: Sequence[AddedToken],
        named_tokens: dict[str, str],
        image_token_id: int | None = None,
    ) -> None:
        self._template_source = template
        self._template = compile_template(template)
        self._named_tokens = named_tokens
        self._splitter = SpecialSplitter(added_tokens)
        self._image_token_id = image_token_id
        self.own_tokens = frozenset(token.content for token in added_tokens if token.special)
        self._traits = probe_template(self._template, template, named_tokens)
        self._answers = TemplateAnswers(self._traits, AnswerHeader(self._template, named_tokens))

    @classmethod
    def from_model(cls, files: ModelFiles) -> "ChatTemplateEncoding":
        """The encoding of a model directory. Raises: BadModelDirectory: no usable template."""
        image = files.config.get("image_token_id", files.config.get("image_token_index"))
        image_token_id = image if isinstance(image, int) else None
        template = files.chat_template
        try:
            return cls(template, files.added_tokens, files.named_tokens, image_token_id)
        except TemplateSyntaxError as err:
            reason = f"line {err.lineno} of the chat template: {err.message}"
            raise BadModelDirectory(files.directory / "tokenizer_config.json", reason) from err

    @property
    def traits(self) -> TemplateTraits:
        """What the template was found to be able to do."""
        return self._traits

    def effective_sampling(
        self, conversation: Conversation, sampling: SamplingOptions
    ) -> tuple[SamplingOptions, tuple[str, ...]]:
        """See PromptEncoding.effective_sampling: what the caller asks for."""
        return sampling, ()

    def render(self, conversation: Conversation) -> RenderedPrompt:
        """See PromptEncoding.render."""
        tools = offered_tools(conversation)
        in_text = bool(tools) and not self._traits.has_tools
        section = tool_section(tools) if in_text else ""
        texts: list[str] = []
        self._values(conversation, tools, section, _collector(texts), "")
        marker = unused_character([self._template_source, *texts])
        end = unused_character([self._template_source, marker, *texts])
        values = self._values(
            conversation, tools, section, lambda text: self._splitter.mark(text, marker), end
        )
        output = self._render(values, marker, max_chars=8 * sum(map(len, texts)))
        continues = bool(conversation.messages) and _continues(conversation)
        if continues:
            output = _cut_at(output, end)
        prompt = self._read(self._splitter.split(output, marker), conversation)
        return self._answers.expect(prompt, conversation, tools, continues=continues)

    def _values(
        self, conversation: Conversation, tools: dict[str, Tool], section: str, mark: Mark, end: str
    ) -> dict[str, Any]:
        """Variables of the template. end: put behind an answer that is to be continued."""
        messages = list(conversation.messages)
        continues = bool(messages) and _continues(conversation)
        if messages and messages[-1].is_prefix and not continues:
            messages.pop()
        values = MessageValues(self._traits, mark, section=section).of(messages)
        if continues:
            values[-1]["content"] = _text_content(values[-1]["content"]) + end
        variables = {
            "messages": values,
            "add_generation_prompt": not continues,
            **self._named_tokens,
            **thinking_switches(conversation.thinking),
        }
        if tools and self._traits.has_tools:
            variables["tools"] = tool_values(tools, mark)
        return variables

    def _render(self, values: dict[str, Any], marker: str, *, max_chars: int) -> str:
        try:
            return render_bounded(self._template, values, max_chars=max_chars + _TEMPLATE_OWN_CHARS)
        except TemplateRefusal as err:
            raise RequestRefused([Problem("messages", str(err).replace(marker, ""))]) from err
        except (TemplateError, TypeError, ValueError, KeyError, IndexError) as err:
            message = f"the model's chat template can't render these messages: {err}"
            raise RequestRefused([Problem("messages", message.replace(marker, ""))]) from err

    def _read(self, segments: Sequence[Segment], conversation: Conversation) -> RenderedPrompt:
        """Segments with the placeholders of images told apart."""
        images = [
            part for m in conversation.messages for part in m.parts if isinstance(part, ImagePart)
        ]
        if not images:
            return RenderedPrompt(segments)
        found: list[Segment] = []
        num_found = 0
        for segment in segments:
            if isinstance(segment, Special) and segment.token_id == self._image_token_id:
                found.append(Image(num_found, segment.token_id, segment.content))
                num_found += 1
            else:
                found.append(segment)
        if num_found != len(images):
            problem = "the model's chat template has no place for every image"
            raise RequestRefused([Problem(images[0].param or "messages", problem)])
        return RenderedPrompt(found, images=tuple(images))


def _collector(texts: list[str]) -> Mark:
    def collect(text: str) -> str:
        texts.append(text)
        return text

    return collect


def _continues(conversation: Conversation) -> bool:
    """True when the last message is an assistant's beginning with words in it."""
    last = conversation.messages[-1]
    return last.is_prefix and has_content(last)


def _text_content(content: Any) -> str:
    if isinstance(content, str):
        return content
    raise RequestRefused([Problem("messages", "an answer to be continued can't hold images")])


def _cut_at(output: str, end: str) -> str:
    """The prompt up to where the answer goes on. Raises: RequestRefused."""
    at = output.rfind(end)
    if at < 0:
        message = "the model's chat template can't continue an answer"
        raise RequestRefused([Problem("messages", message)])
    return output[:at]
