"""Body to prompt: parse, check the model, render, encode, fit into the context."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rorqual_recipe.constraints import answer_constraint
from rorqual_recipe.conversation import OutputConstraint, ParsedRequest, RawPrompt
from rorqual_recipe.encodings.base import AnswerStage, RenderedPrompt
from rorqual_recipe.images import PlacedImage, PreparedImage, expand, image_token_of
from rorqual_recipe.model import ServedModel
from rorqual_recipe.problems import Problem, RequestRefused, context_too_long, model_not_found
from rorqual_recipe.protocols.base import ParseLimits, ProtocolAdapter
from rorqual_recipe.tokens.segments import segments_to_bytes
from rorqual_recipe.truncation import shortened

TOKEN_BYTES = 4
_SEED_BITS = 64
_LEAST_SHARE = 1e-30
_GREATEST_SHARE = 1 - 2.0**-24


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Sampling with every default filled in; `seed` is the first choice's."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    max_new_tokens: int
    ignore_eos: bool
    logprobs: bool
    top_logprobs: int
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_new_tokens: int = 0

    def seed_of(self, choice_index: int) -> int:
        """Seed of one choice: different for each, and repeatable."""
        return (self.seed + choice_index) % (1 << _SEED_BITS)


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A request ready to be generated.

    prompt: int32 little endian, of `rendered`. other_prompts: of a request that has several; each
    has the same number of choices. num_prompt_tokens: of all of them. images: in `prompt`, which
    is of a conversation then.
    """

    parsed: ParsedRequest
    prompt: bytes
    num_prompt_tokens: int
    sampling: SamplingPlan
    constraint: OutputConstraint | None
    rendered: RenderedPrompt
    other_prompts: tuple[bytes, ...] = ()
    images: tuple[PlacedImage, ...] = ()

    @property
    def prompts(self) -> tuple[bytes, ...]:
        """Every prompt."""
        return (self.prompt, *self.other_prompts)

    def prompt_index_of(self, choice_index: int) -> int:
        """Which prompt a choice continues."""
        return choice_index * len(self.prompts) // self.parsed.num_choices


def encode_request(
    body: bytes,
    adapter: ProtocolAdapter,
    model: ServedModel,
    *,
    default_max_tokens: int,
    limits: ParseLimits,
    default_seed: int = 0,
) -> EncodedRequest:
    """CPU work only. default_seed: for who names none.

    Raises: RequestRefused with every problem found.
    """
    parsed = adapter.parse(body, limits)
    if parsed.model != model.model_id:
        raise RequestRefused([model_not_found(parsed.model, [model.model_id])])
    if parsed.truncates:
        parsed = shortened(parsed, model, default_max_tokens)
    parsed, rendered = _render(parsed, model)
    constraint, unenforced = answer_constraint(
        parsed.conversation, rendered, model.vocabulary.added
    )
    parsed.warnings.extend(unenforced)
    prompts = _prompts(parsed, rendered, model)
    default = rendered.default_max_tokens or default_max_tokens
    longest = max(map(len, prompts)) // TOKEN_BYTES
    max_new_tokens = _max_new_tokens(parsed, longest, model, default)
    return EncodedRequest(
        parsed=parsed,
        prompt=prompts[0],
        other_prompts=tuple(prompts[1:]),
        num_prompt_tokens=sum(map(len, prompts)) // TOKEN_BYTES,
        sampling=_plan(parsed, model, max_new_tokens, default_seed),
        constraint=constraint,
        rendered=rendered,
    )


def with_images(
    encoded: EncodedRequest,
    images: Sequence[PreparedImage],
    model: ServedModel,
    *,
    default_max_tokens: int,
) -> EncodedRequest:
    """The request with all tokens of its images. Raises: RequestRefused when they don't fit."""
    rendered = encoded.rendered
    prompt, placed = expand(encoded.prompt, image_token_of(rendered), rendered.images, images)
    num_tokens = len(prompt) // TOKEN_BYTES
    default = rendered.default_max_tokens or default_max_tokens
    max_new_tokens = _max_new_tokens(encoded.parsed, num_tokens, model, default)
    min_new_tokens = min(encoded.parsed.sampling.min_tokens, max_new_tokens)
    sampling = replace(
        encoded.sampling, max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens
    )
    return replace(
        encoded, prompt=prompt, num_prompt_tokens=num_tokens, images=placed, sampling=sampling
    )


def _render(parsed: ParsedRequest, model: ServedModel) -> tuple[ParsedRequest, RenderedPrompt]:
    """The prompt, and the request with sampling and warnings as the prompt's encoding has them."""
    if parsed.raw_prompts:
        return parsed, RenderedPrompt((), stage=AnswerStage.CONTENT_CONTINUATION)
    encoding = model.encoding
    sampling, warnings = encoding.effective_sampling(parsed.conversation, parsed.sampling)
    rendered = encoding.render(parsed.conversation)
    all_warnings = [*parsed.warnings, *warnings, *rendered.warnings]
    return replace(parsed, sampling=sampling, warnings=all_warnings), rendered


def _prompts(parsed: ParsedRequest, rendered: RenderedPrompt, model: ServedModel) -> list[bytes]:
    """Ids of every prompt. Raises: RequestRefused when there is none to continue."""
    if not parsed.raw_prompts:
        return [segments_to_bytes(rendered.segments, model.encoder)]
    prompts = [_raw_prompt(prompt, parsed, model) for prompt in parsed.raw_prompts]
    if not all(prompts):
        raise RequestRefused([Problem(parsed.prompt_param, "must hold at least one token")])
    return prompts


def _raw_prompt(prompt: RawPrompt, parsed: ParsedRequest, model: ServedModel) -> bytes:
    if not isinstance(prompt, str):
        return np.array(prompt, dtype="<i4").tobytes()
    segments = model.raw_text.segments(prompt, add_special_tokens=parsed.adds_special_tokens)
    return segments_to_bytes(segments, model.encoder)


def _max_new_tokens(
    parsed: ParsedRequest, num_prompt_tokens: int, model: ServedModel, default_max_tokens: int
) -> int:
    limit = model.max_context_tokens
    left = limit - num_prompt_tokens
    wanted = parsed.sampling.max_tokens
    if left < 1:
        message = f"{num_prompt_tokens} prompt tokens leave no room in a context of {limit} tokens"
        raise RequestRefused([context_too_long(parsed.prompt_param, message)])
    if wanted is None:
        return min(default_max_tokens, left)
    if wanted > left:
        message = (
            f"{num_prompt_tokens} prompt tokens and {wanted} new ones exceed the model's context "
            f"of {limit} tokens"
        )
        raise RequestRefused([context_too_long(parsed.sampling.max_tokens_param, message)])
    return wanted


def seed_of_request(request_id: str) -> int:
    """Another for each request, and the same whoever encodes it: an answer whose tokens are lost
    can be made once more."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=_SEED_BITS // 8).digest()
    return int.from_bytes(digest) >> 1


def _plan(
    parsed: ParsedRequest, model: ServedModel, max_new_tokens: int, default_seed: int
) -> SamplingPlan:
    wish, default = parsed.sampling, model.defaults
    seed = default_seed if wish.seed is None else wish.seed
    return SamplingPlan(
        temperature=default.temperature if wish.temperature is None else wish.temperature,
        top_p=_within_float32(default.top_p if wish.top_p is None else wish.top_p),
        top_k=default.top_k if wish.top_k is None else wish.top_k,
        min_p=_within_float32(default.min_p if wish.min_p is None else wish.min_p),
        seed=seed % (1 << _SEED_BITS),
        max_new_tokens=max_new_tokens,
        ignore_eos=wish.ignore_eos,
        logprobs=wish.logprobs,
        top_logprobs=wish.top_logprobs,
        frequency_penalty=wish.frequency_penalty,
        presence_penalty=wish.presence_penalty,
        repetition_penalty=wish.repetition_penalty,
        logit_bias=wish.logit_bias,
        min_new_tokens=min(wish.min_tokens, max_new_tokens),
    )


def _within_float32(share: float) -> float:
    """What lies strictly between 0 and 1 stays there when it travels as a float32."""
    return min(max(share, _LEAST_SHARE), _GREATEST_SHARE) if 0 < share < 1 else share


def cache_namespace(tenant: str, salt: str) -> str:
    """Who may share KV: one tenant's requests with the same salt. Different pairs differ."""
    return json.dumps([tenant, salt], ensure_ascii=False)
