"""Protocols by name."""

from rorqual_recipe.protocols.base import ProtocolAdapter
from rorqual_recipe.protocols.chat import ChatCompletions
from rorqual_recipe.protocols.direct import DirectProtocol

PROTOCOLS: dict[str, ProtocolAdapter] = {"chat_completions": ChatCompletions()}
"""Answered by a generation."""

DIRECT_PROTOCOLS: dict[str, DirectProtocol] = {}
"""Answered by recipe itself."""
