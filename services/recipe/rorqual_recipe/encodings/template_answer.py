"""How the answer to a prompt of a chat template is to be read, and what its caller should know."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rorqual_recipe.conversation import Conversation, Effort, Message, Role, Thinking, Tool
from rorqual_recipe.encodings.base import NO_TOOL_FORMAT, AnswerStage, RenderedPrompt
from rorqual_recipe.encodings.template_traits import AnswerHeader, TemplateTraits

_HERMES = "hermes"
_EFFORT_WORDS = {Effort.MINIMAL: "low", Effort.XHIGH: "high", Effort.MAX: "high"}


class TemplateAnswers:
    """Answers of one template's model."""

    def __init__(self, traits: TemplateTraits, header: AnswerHeader) -> None:
        self._traits = traits
        self._header = header

    def expect(
        self,
        prompt: RenderedPrompt,
        conversation: Conversation,
        tools: dict[str, Tool],
        *,
        continues: bool,
    ) -> RenderedPrompt:
        """The prompt with everything filled in. continues: it ends in an answer's first words."""
        stage, thinks = self._stage(conversation.thinking, continues=continues)
        begun = _begun_reasoning(conversation, continues=continues)
        if begun and stage is AnswerStage.REASONING:
            stage = AnswerStage.REASONING_CONTINUATION
            prompt = replace(prompt, segments=[*prompt.segments, begun])
            begun = ""
        return replace(
            prompt,
            stage=stage,
            thinks=thinks,
            tool_format=self._tool_format if tools else NO_TOOL_FORMAT,
            tools=tools,
            reasoning_marks=self._traits.reasoning_marks,
            warnings=tuple(self._warnings(conversation, tools, left_out=begun)),
        )

    @property
    def _tool_format(self) -> str:
        return self._traits.tool_format if self._traits.has_tools else _HERMES

    def _warnings(
        self, conversation: Conversation, tools: dict[str, Tool], *, left_out: str
    ) -> Iterator[str]:
        roles = {message.role for message in conversation.messages}
        wish = conversation.thinking
        if _wants_thinking(wish) and self._traits.reasoning_marks is None:
            yield "thinking: this model's chat template knows of none"
        elif wish.effort_percent is not None:
            yield "thinking: this model's chat template takes no effort as a number"
        if left_out:
            yield "messages: this model's reasoning can't be continued, it begins anew"
        if tools and not self._traits.has_tools:
            yield "tools: the model's chat template knows none, a system text names them"
        elif tools and self._tool_format == NO_TOOL_FORMAT:
            yield "tools: calls in this model's own format are not recognised"
        if roles & {Role.SYSTEM, Role.DEVELOPER} and not self._traits.takes_system:
            yield "messages: the model's chat template knows no system role, the user says its text"

    def _stage(self, thinking: Thinking, *, continues: bool) -> tuple[AnswerStage, bool]:
        """Where the answer stands, and whether it may hold reasoning.

        A template that opens no reasoning leaves that to the model, unless it has closed it too.
        """
        marks = self._traits.reasoning_marks
        if continues:
            return AnswerStage.CONTENT_CONTINUATION, False
        if marks is None:
            return AnswerStage.CONTENT, False
        header = self._header.text(thinking_switches(thinking))
        opened, closed = header.rfind(marks[0]), header.rfind(marks[1])
        if opened > closed:
            return AnswerStage.REASONING, True
        return AnswerStage.CONTENT, closed < 0 and thinking.enabled is not False


def _wants_thinking(wish: Thinking) -> bool:
    if wish.enabled is not None:
        return wish.enabled
    return (wish.effort or wish.effort_percent or wish.budget_tokens) is not None


def _begun_reasoning(conversation: Conversation, *, continues: bool) -> str:
    """Reasoning that the answer should go on with; "" when there is none."""
    last: Message | None = conversation.messages[-1] if conversation.messages else None
    if last is None or continues or not last.is_prefix:
        return ""
    return last.reasoning or ""


def thinking_switches(thinking: Thinking) -> dict[str, Any]:
    """Variables by which templates turn reasoning on and off; none where nothing is wished."""
    switches: dict[str, Any] = {}
    enabled = thinking.enabled
    if enabled is None and thinking.effort is not None:
        enabled = True
    if enabled is not None:
        switches = {"enable_thinking": enabled, "thinking": enabled}
    if thinking.effort is not None:
        switches["reasoning_effort"] = _EFFORT_WORDS.get(thinking.effort, thinking.effort.value)
    return switches
