"""What a chat answer depends on besides its events."""

from dataclasses import dataclass

from rorqual_recipe.output.events import FinishReason


@dataclass(frozen=True, slots=True)
class ChatEcho:
    """is_legacy: the client declared `functions` and reads `function_call`, one at most."""

    is_legacy: bool = False

    def finish_reason(self, reason: FinishReason) -> str:
        """The reason in the words the client knows."""
        if self.is_legacy and reason is FinishReason.TOOL_CALLS:
            return "function_call"
        return str(reason)
