"""The turns of a DeepSeek prompt, from the first message to where the answer begins."""

from collections.abc import Mapping, Sequence

from rorqual_recipe.conversation import Conversation, Message, Role, ToolCall
from rorqual_recipe.encodings.base import AnswerStage, Special
from rorqual_recipe.encodings.deepseek_calls import CallWriter
from rorqual_recipe.encodings.deepseek_head import HeadWriter
from rorqual_recipe.encodings.deepseek_layout import Layout
from rorqual_recipe.encodings.deepseek_mode import Mode
from rorqual_recipe.encodings.deepseek_user import UserTurns
from rorqual_recipe.encodings.message_parts import has_content, write_content
from rorqual_recipe.encodings.segments import SegmentWriter
from rorqual_recipe.profile import PromptProfile


class TurnWriter:
    """Writes one conversation; use once."""

    def __init__(
        self,
        layout: Layout,
        profile: PromptProfile,
        tokens: Mapping[str, Special],
        conversation: Conversation,
        mode: Mode,
    ) -> None:
        self._layout = layout
        self._profile = profile
        self._conversation = conversation
        self._mode = mode
        self.out = SegmentWriter(tokens)
        self._head = HeadWriter(layout, profile, mode, self.out)
        self._users = UserTurns(layout, profile, self.out)
        self._calls = CallWriter(layout, self.out)
        self._last_calls: tuple[ToolCall, ...] = ()
        self._loop_start = _end_of_users(conversation.messages)
        self.starts_in_tool_calls = False

    def write(self) -> AnswerStage:
        """Everything; returns where the answer stands."""
        leading, turns = self._split()
        self._head.write(self._conversation, leading)
        run: list[Message] = []
        for index, message in turns:
            if self._is_user_side(message):
                run.append(message)
                continue
            self._users.write(run, self._last_calls)
            run = []
            self._turn(index, message)
        self._users.write(run, self._last_calls)
        last = turns[-1][1] if turns else None
        return self._prefix(last) if last is not None and last.is_prefix else self._answer()

    def _split(self) -> tuple[list[Message], list[tuple[int, Message]]]:
        """Messages of the head, and the others with their places; those that say nothing go."""
        leading: list[Message] = []
        turns: list[tuple[int, Message]] = []
        for index, message in enumerate(self._conversation.messages):
            if message.role in (Role.SYSTEM, Role.DEVELOPER) and not self._speaks(message):
                continue
            to_head = self._layout.hoists_system or not (turns or leading)
            if self._is_system(message) and to_head:
                leading.append(message)
            else:
                turns.append((index, message))
        return leading, turns

    def _speaks(self, message: Message) -> bool:
        return has_content(message) or bool(self._head.declared_by(message))

    def _is_system(self, message: Message) -> bool:
        if message.role is Role.DEVELOPER:
            return self._layout.developer_is_system
        stays = self._layout.hoists_system and message.stays_in_place
        return message.role is Role.SYSTEM and not stays

    def _is_user_side(self, message: Message) -> bool:
        if message.role in (Role.SYSTEM, Role.DEVELOPER):
            return not self._is_system(message)
        return message.role in (Role.USER, Role.TOOL)

    def _turn(self, index: int, message: Message) -> None:
        if message.role is Role.REMINDER:
            self.out.special("reminder")
            write_content(self.out, message, self._profile.image_text)
        elif message.role is not Role.ASSISTANT:
            self.out.special("system")
            self._head.system(message)
        elif not message.is_prefix:
            self._assistant(message, keeps_reasoning=self._keeps_reasoning(index, message))

    def _keeps_reasoning(self, index: int, message: Message) -> bool:
        """With tools always; without, what led to calls that the answer is still to follow."""
        if not self._mode.thinks or self._mode.has_tools:
            return self._mode.thinks
        in_loop = index >= self._loop_start and bool(message.tool_calls)
        return in_loop and bool(message.reasoning)

    def _assistant(self, message: Message, *, keeps_reasoning: bool) -> None:
        self.out.special("assistant")
        if keeps_reasoning:
            self.out.special("think_open")
            self.out.text(message.reasoning or "")
        self.out.special("think_close")
        write_content(self.out, message, self._profile.image_text)
        if message.tool_calls:
            self._calls.block(message.tool_calls)
        self._last_calls = message.tool_calls
        self.out.special("eos")

    def _prefix(self, message: Message) -> AnswerStage:
        """An assistant's beginning, left open."""
        self.out.special("assistant")
        says = has_content(message)
        if self._mode.thinks:
            self.out.special("think_open")
            self.out.text(message.reasoning or "")
            if not says:
                begun = bool(message.reasoning)
                return AnswerStage.REASONING_CONTINUATION if begun else AnswerStage.REASONING
        self.out.special("think_close")
        write_content(self.out, message, self._profile.image_text)
        self._required_call()
        return AnswerStage.CONTENT_CONTINUATION if says else AnswerStage.CONTENT

    def _answer(self) -> AnswerStage:
        """Where a new answer begins."""
        self.out.special("assistant")
        if self._mode.thinks:
            self.out.special("think_open")
            return AnswerStage.REASONING
        self.out.special("think_close")
        self._required_call()
        return AnswerStage.CONTENT

    def _required_call(self) -> None:
        """A required call is opened for the model; one that thinks first opens it by itself."""
        if self._mode.is_call_required and not self._mode.thinks:
            self._calls.open_block()
            self.starts_in_tool_calls = True


def _end_of_users(messages: Sequence[Message]) -> int:
    """Index behind the last message of the user."""
    places = [index for index, message in enumerate(messages) if message.role is Role.USER]
    return places[-1] + 1 if places else 0
