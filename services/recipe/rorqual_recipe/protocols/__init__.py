"""Protocols by name."""

from rorqual_recipe.protocols.base import ProtocolAdapter
from rorqual_recipe.protocols.chat import ChatCompletions

PROTOCOLS: dict[str, ProtocolAdapter] = {"chat_completions": ChatCompletions()}
