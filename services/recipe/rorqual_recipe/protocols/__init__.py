"""Protocols by name."""

from rorqual_recipe.protocols.base import ProtocolAdapter
from rorqual_recipe.protocols.chat import ChatCompletions
from rorqual_recipe.protocols.direct import DirectProtocol
from rorqual_recipe.protocols.messages import CountTokens, Messages

PROTOCOLS: dict[str, ProtocolAdapter] = {
    "chat_completions": ChatCompletions(),
    "messages": Messages(),
}
"""Answered by a generation."""

DIRECT_PROTOCOLS: dict[str, DirectProtocol] = {"count_tokens": CountTokens()}
"""Answered by recipe itself."""
