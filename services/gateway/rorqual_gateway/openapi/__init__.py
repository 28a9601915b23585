"""How the API describes itself."""

from rorqual_gateway.openapi import chat, messages, responses, tokens
from rorqual_gateway.openapi.parts import COMING_BACK, OPENAI_ERROR, Operation, errors

__all__ = ["COMING_BACK", "ERRORS", "OPERATIONS"]

OPERATIONS: dict[str, Operation] = {
    "CHAT_COMPLETIONS": chat.CHAT_COMPLETIONS,
    "COMPLETIONS": chat.COMPLETIONS,
    "RESPONSES": responses.RESPONSES,
    "RESPONSE_RETRIEVE": responses.RESPONSE_RETRIEVE,
    "RESPONSE_DELETE": responses.RESPONSE_DELETE,
    "RESPONSE_INPUT_ITEMS": responses.RESPONSE_INPUT_ITEMS,
    "MESSAGES": messages.MESSAGES,
    "COUNT_TOKENS": messages.COUNT_TOKENS,
    "TOKENIZE": tokens.TOKENIZE,
    "DETOKENIZE": tokens.DETOKENIZE,
}
"""By the name of the endpoint."""

ERRORS = errors(OPENAI_ERROR, generated=False)
