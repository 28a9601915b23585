"""Tokenize and Detokenize: what a text or a conversation is to the model, and back."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel
from pydantic_core import to_json
from rorqual_runtime.errors import ServingError

from rorqual_recipe.documents import reading_weight
from rorqual_recipe.encodings.base import RenderedPrompt
from rorqual_recipe.images import expand, image_token_of
from rorqual_recipe.model import ServedModel
from rorqual_recipe.problems import Problem, RequestRefused, model_not_found
from rorqual_recipe.protocols.base import ParseLimits, RenderedError
from rorqual_recipe.protocols.chat.parse import parse_chat_value
from rorqual_recipe.protocols.chat.schema import OPEN
from rorqual_recipe.protocols.chat.shown import shown_token
from rorqual_recipe.protocols.completions_parse import PromptReader
from rorqual_recipe.protocols.direct import DirectServices
from rorqual_recipe.protocols.notes import Notes
from rorqual_recipe.protocols.openai_refusals import render_refusal, render_serving_error
from rorqual_recipe.protocols.paths import read_json_object, validate
from rorqual_recipe.tokens.segments import segments_to_bytes

_OF_TOKENIZE = ("prompt", "add_special_tokens", "return_token_strs")


class TokenizeRequest(BaseModel):
    """`POST /tokenize` of a text."""

    model_config = OPEN

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(BaseModel):
    """`POST /detokenize`."""

    model_config = OPEN

    model: str | None = None
    tokens: list[Any]


class _TokenProtocol:
    """DirectProtocol with OpenAI's errors."""

    def render_refusal(self, problems: Sequence[Problem]) -> RenderedError:
        """See DirectProtocol.render_refusal."""
        return render_refusal(problems)

    def render_error(self, error: ServingError) -> RenderedError:
        """See DirectProtocol.render_error."""
        return render_serving_error(error)


class Tokenize(_TokenProtocol):
    """`/tokenize`: a prompt's ids, or those of the prompt that messages become."""

    async def answer(
        self, body: bytes, resource: str, tenant: str, services: DirectServices
    ) -> tuple[int, bytes]:
        """See DirectProtocol.answer. The ids are found on a thread when the body is long."""

        def work() -> tuple[bool, RenderedPrompt, bytes]:
            value = read_json_object(body)
            wants_spellings = value.get("return_token_strs")
            if wants_spellings not in (None, True, False):
                raise RequestRefused([Problem("return_token_strs", "must be true or false")])
            rendered = self._rendered(value, services)
            return (
                bool(wants_spellings),
                rendered,
                segments_to_bytes(rendered.segments, services.model.encoder),
            )

        wants_spellings, rendered, prompt = await services.compute(work, reading_weight(body))
        if rendered.images and services.prepare_images is not None:
            images = await services.prepare_images(rendered.images)
            prompt, _ = expand(prompt, image_token_of(rendered), rendered.images, images)

        def write() -> bytes:
            return to_json(_described(prompt, services.model, wants_spellings))

        return 200, await services.compute(write, len(prompt))

    def _rendered(self, value: dict[str, Any], services: DirectServices) -> RenderedPrompt:
        model = services.model
        if value.get("messages") is not None:
            return _prompt_of_messages(value, model, services.limits)
        request, problems = validate(TokenizeRequest, value)
        if request is None:
            raise RequestRefused(problems)
        _check_model(request.model, model)
        adds = request.add_special_tokens is not False
        return RenderedPrompt(model.raw_text.segments(request.prompt, add_special_tokens=adds))


def _described(prompt: bytes, model: ServedModel, wants_spellings: bool) -> dict[str, Any]:
    ids = np.frombuffer(prompt, dtype="<i4").tolist()
    spelling_of: Callable[[int], bytes] = model.vocabulary.spelling_of
    return {
        "count": len(ids),
        "max_model_len": model.max_context_tokens,
        "tokens": ids,
        "token_strs": [shown_token(spelling_of(i)) for i in ids] if wants_spellings else None,
    }


def _prompt_of_messages(
    value: dict[str, Any], model: ServedModel, limits: ParseLimits
) -> RenderedPrompt:
    if value.get("prompt") is not None:
        raise RequestRefused([Problem("prompt", "must not be given beside messages")])
    body = {name: field for name, field in value.items() if name not in _OF_TOKENIZE}
    if body.get("model") is None:
        body["model"] = model.model_id
    parsed = parse_chat_value(body, limits)
    _check_model(parsed.model, model)
    return model.encoding.render(parsed.conversation)


class Detokenize(_TokenProtocol):
    """`/detokenize`: the text of token ids, special ones as they are spelled."""

    async def answer(
        self, body: bytes, resource: str, tenant: str, services: DirectServices
    ) -> tuple[int, bytes]:
        """See DirectProtocol.answer."""

        def work() -> bytes:
            return to_json(self._text(read_json_object(body), services))

        return 200, await services.compute(work, reading_weight(body))

    def _text(self, value: dict[str, Any], services: DirectServices) -> dict[str, Any]:
        request, problems = validate(DetokenizeRequest, value)
        if request is None:
            raise RequestRefused(problems)
        _check_model(request.model, services.model)
        notes = Notes()
        ids = _integers(request.tokens, notes)
        PromptReader(services.limits, notes).token_ids(ids, "tokens")
        if notes.problems:
            raise RequestRefused(notes.problems)
        vocabulary = services.model.vocabulary
        spelled = b"".join(map(vocabulary.spelling_of, ids))
        if vocabulary.strips_first_space:
            spelled = spelled.removeprefix(b" ")
        return {"prompt": spelled.decode("utf-8", errors="replace")}


def _integers(values: list[Any], notes: Notes) -> list[int]:
    wrong = next((i for i, value in enumerate(values) if type(value) is not int), None)
    if wrong is not None:
        notes.problem(f"tokens[{wrong}]", "must be a token id")
        return []
    return values


def _check_model(name: str | None, model: ServedModel) -> None:
    if name not in (None, model.model_id):
        raise RequestRefused([model_not_found(str(name), [model.model_id])])
