"""The Chat Completions protocol."""

from rorqual_recipe.protocols.chat.adapter import ChatCompletions

__all__ = ["ChatCompletions"]
