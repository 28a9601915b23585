"""Protocols by name."""

from rorqual_recipe.protocols.base import ProtocolAdapter
from rorqual_recipe.protocols.chat import ChatCompletions
from rorqual_recipe.protocols.completions import Completions
from rorqual_recipe.protocols.direct import DirectProtocol
from rorqual_recipe.protocols.messages import CountTokens, Messages
from rorqual_recipe.protocols.responses import (
    DeleteResponse,
    ListInputItems,
    Responses,
    RetrieveResponse,
)
from rorqual_recipe.protocols.tokenize import Detokenize, Tokenize

PROTOCOLS: dict[str, ProtocolAdapter] = {
    "chat_completions": ChatCompletions(),
    "completions": Completions(),
    "messages": Messages(),
    "responses": Responses(),
}
"""Answered by a generation."""

DIRECT_PROTOCOLS: dict[str, DirectProtocol] = {
    "tokenize": Tokenize(),
    "detokenize": Detokenize(),
    "count_tokens": CountTokens(),
    "response_retrieve": RetrieveResponse(),
    "response_delete": DeleteResponse(),
    "response_input_items": ListInputItems(),
}
"""Answered by recipe itself."""
