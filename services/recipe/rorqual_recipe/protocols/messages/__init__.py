"""The Messages API."""

from rorqual_recipe.protocols.messages.adapter import CountTokens, Messages

__all__ = ["CountTokens", "Messages"]
