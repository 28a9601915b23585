"""Tokenize and Detokenize."""

from rorqual_gateway.openapi.chat import MESSAGE
from rorqual_gateway.openapi.parts import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    OPENAI_ERROR,
    STRING,
    Operation,
    Schema,
    answers,
    body_of,
    listed,
)

_TOKENS: Schema = {
    "type": "object",
    "properties": {
        "count": INTEGER,
        "max_model_len": INTEGER,
        "tokens": listed(INTEGER),
        "token_strs": {"anyOf": [listed(STRING), {"type": "null"}]},
    },
}

TOKENIZE = Operation(
    "Token ids of a text, or of the prompt that messages become",
    "tokenize",
    answers(_TOKENS, OPENAI_ERROR, streams=False),
    body_of(
        "TokenizeRequest",
        [],
        {
            "model": STRING,
            "prompt": STRING,
            "messages": listed(MESSAGE),
            "tools": listed(OBJECT),
            "add_special_tokens": BOOLEAN,
            "add_generation_prompt": BOOLEAN,
            "continue_final_message": BOOLEAN,
            "return_token_strs": BOOLEAN,
        },
    ),
)
DETOKENIZE = Operation(
    "Text of token ids",
    "detokenize",
    answers({"type": "object", "properties": {"prompt": STRING}}, OPENAI_ERROR, streams=False),
    body_of("DetokenizeRequest", ["tokens"], {"model": STRING, "tokens": listed(INTEGER)}),
)
