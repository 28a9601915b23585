"""Tool calls of the past, in the markup that the model writes them in."""

from collections.abc import Sequence

from rorqual_recipe.conversation import ToolCall, ToolKind
from rorqual_recipe.encodings.call_arguments import Parameter, split_arguments
from rorqual_recipe.encodings.deepseek_layout import Layout
from rorqual_recipe.encodings.segments import SegmentWriter
from rorqual_recipe.encodings.tool_lines import CUSTOM_INPUT, joined_name


class CallWriter:
    """Writes blocks of calls."""

    def __init__(self, layout: Layout, out: SegmentWriter) -> None:
        self._layout = layout
        self._out = out

    def open_block(self) -> None:
        """The tag that the first call follows."""
        self._tag("\n\n<", f"{self._layout.block}>\n")

    def block(self, calls: Sequence[ToolCall]) -> None:
        """A whole block."""
        self.open_block()
        for call in calls:
            self._call(call)
        self._tag("</", f"{self._layout.block}>")

    def _call(self, call: ToolCall) -> None:
        gap, name = self._layout.gap, joined_name(call.namespace, call.name, self._joiner)
        self._tag("<", f'{gap}invoke name="{name}">\n')
        parameters = _parameters(call)
        for index, parameter in enumerate(parameters):
            self._out.text("\n" if index else "")
            self._parameter(parameter)
        self._out.text("\n" if parameters else self._layout.empty_call)
        self._tag("</", f"{gap}invoke>\n")

    @property
    def _joiner(self) -> str:
        return self._layout.namespace_joiner

    def _parameter(self, parameter: Parameter) -> None:
        gap, is_string = self._layout.gap, "true" if parameter.is_string else "false"
        self._tag("<", f'{gap}parameter name="{parameter.name}" string="{is_string}">')
        self._out.text(parameter.value)
        self._tag("</", f"{gap}parameter>")

    def _tag(self, before: str, after: str) -> None:
        self._out.tag(before, "dsml", after)


def _parameters(call: ToolCall) -> Sequence[Parameter]:
    if call.kind is ToolKind.CUSTOM:
        return [Parameter(CUSTOM_INPUT, True, call.arguments)]
    return split_arguments(call.arguments)
