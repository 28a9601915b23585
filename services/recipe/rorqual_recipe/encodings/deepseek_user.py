"""The user's side of a DeepSeek prompt: words and results of tools, in one turn."""

from collections.abc import Sequence
from itertools import groupby

from rorqual_recipe.conversation import Message, Role, ToolCall
from rorqual_recipe.encodings.deepseek_layout import Layout
from rorqual_recipe.encodings.message_parts import has_content, write_content
from rorqual_recipe.encodings.segments import SegmentWriter
from rorqual_recipe.profile import PromptProfile

SEPARATOR = "\n\n"
_RESULT_OPEN, _RESULT_CLOSE = "<tool_result>", "</tool_result>"


class UserTurns:
    """Writes turns that the model answers."""

    def __init__(self, layout: Layout, profile: PromptProfile, out: SegmentWriter) -> None:
        self._layout = layout
        self._profile = profile
        self._out = out

    def write(self, run: Sequence[Message], calls: Sequence[ToolCall]) -> None:
        """One turn of neighbouring messages; results stand in the order of the calls."""
        if not run:
            return
        self._out.special("user")
        for index, block in enumerate(self._blocks(_by_call(run, calls))):
            self._out.text(SEPARATOR if index else "")
            self._write_block(block)

    def _blocks(self, run: Sequence[Message]) -> list[list[Message]]:
        """Messages that are joined before all else is."""
        if not self._layout.joins_users:
            return [[message] for message in run]
        groups = groupby(enumerate(run), key=_group)
        return [[message for _, message in group] for _, group in groups]

    def _write_block(self, messages: Sequence[Message]) -> None:
        several = [m for m in messages if has_content(m)] if len(messages) > 1 else messages
        for index, message in enumerate(several):
            self._out.text(SEPARATOR if index else "")
            self._write_one(message)

    def _write_one(self, message: Message) -> None:
        before, after = self._around(message.role)
        self._out.text(before)
        write_content(self._out, message, self._profile.image_text)
        self._out.text(after)

    def _around(self, role: Role) -> tuple[str, str]:
        if role is Role.TOOL:
            return _RESULT_OPEN, _RESULT_CLOSE
        if role is Role.SYSTEM:
            return self._profile.late_system or ("", "")
        return "", ""


def _group(item: tuple[int, Message]) -> int:
    """Each result of a tool is a group of its own, all else between them is one."""
    index, message = item
    return index if message.role is Role.TOOL else -1


def _by_call(run: Sequence[Message], calls: Sequence[ToolCall]) -> Sequence[Message]:
    """The run with its results in the order of the calls they answer."""
    results = [message for message in run if message.role is Role.TOOL]
    if len(results) < 2:
        return run
    places = {call.call_id: place for place, call in enumerate(calls)}
    results.sort(key=lambda message: places.get(message.tool_call_id or "", len(places)))
    ordered = iter(results)
    return [next(ordered) if message.role is Role.TOOL else message for message in run]
