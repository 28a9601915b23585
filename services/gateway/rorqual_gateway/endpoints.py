"""The operations of the API as the edge sees them: whose errors, which names, which stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from rorqual_gateway import dialects
from rorqual_gateway.dialects import Dialect


@dataclass(frozen=True, slots=True)
class _Facts:
    operation: str
    dialect: Dialect
    id_prefix: str = ""


class Endpoint(Enum):
    """One operation; recipe knows its protocol under the same name.

    operation: OpenTelemetry's `gen_ai.operation.name`. id_prefix: of the answer's own id.
    """

    CHAT_COMPLETIONS = _Facts("chat", dialects.OPENAI, "chatcmpl-")
    RESPONSES = _Facts("chat", dialects.RESPONSES, "resp_")
    MESSAGES = _Facts("chat", dialects.ANTHROPIC, "msg_")
    COMPLETIONS = _Facts("text_completion", dialects.OPENAI, "cmpl-")
    TOKENIZE = _Facts("tokenize", dialects.OPENAI)
    DETOKENIZE = _Facts("detokenize", dialects.OPENAI)
    COUNT_TOKENS = _Facts("count_tokens", dialects.ANTHROPIC)
    RESPONSE_RETRIEVE = _Facts("retrieve_response", dialects.RESPONSES)
    RESPONSE_DELETE = _Facts("delete_response", dialects.RESPONSES)
    RESPONSE_INPUT_ITEMS = _Facts("list_input_items", dialects.RESPONSES)

    @property
    def operation(self) -> str:
        return self.value.operation

    @property
    def dialect(self) -> Dialect:
        return self.value.dialect

    @property
    def id_prefix(self) -> str:
        return self.value.id_prefix


def dialect_of(path: str, headers: Mapping[str, str]) -> Dialect:
    """Whom a request that reaches no operation, or the model list, comes from."""
    is_anthropic = path.startswith("/v1/messages") or "anthropic-version" in headers
    return dialects.ANTHROPIC if is_anthropic else dialects.OPENAI
