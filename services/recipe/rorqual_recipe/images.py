"""Images of a prompt: what they will be to the model, and their places among the tokens."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from rorqual_runtime.errors import ErrorCode, ServingError

from rorqual_recipe.conversation import ImagePart
from rorqual_recipe.encodings.base import Image, RenderedPrompt
from rorqual_recipe.problems import Problem, RequestRefused

_INLINE_DECODE_CHARS = 1 << 20
_BLAMED = frozenset({ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED, ErrorCode.REQUEST_TOO_LARGE})
_TOKEN_TYPE = np.dtype("<i4")


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """What vision says of an image. pixels: a ticket, passed on unread."""

    digest: bytes
    num_tokens: int
    num_patches: int
    pixels: Any


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image at its place in the prompt. param: the field it came from."""

    first_token: int
    param: str
    image: PreparedImage


class VisionPort(Protocol):
    """Vision as this service asks it."""

    async def __call__(self, request_id: str, part: ImagePart, data: bytes | None) -> PreparedImage:
        """data: the image file; None = it is at part.url. Raises: ServingError."""
        ...


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """max_images: of one request, counted once for each of its choices."""

    max_images: int = 600
    max_at_once: int = 16


async def prepare_images(
    parts: Sequence[ImagePart],
    *,
    ask: VisionPort,
    request_id: str,
    limits: ImageLimits,
    num_choices: int = 1,
) -> list[PreparedImage]:
    """One for each part, asked for side by side; equal ones once.

    Raises: RequestRefused naming every image that can't be used; ServingError.
    """
    _check_number(parts, limits.max_images, num_choices)
    turn = asyncio.Semaphore(limits.max_at_once)
    tasks: dict[ImagePart, asyncio.Task[PreparedImage]] = {}
    for part in parts:
        same = replace(part, param="")
        if same not in tasks:
            work = _prepare(part, ask, request_id, turn)
            tasks[same] = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait(tasks.values())
    finally:
        for task in tasks.values():
            task.cancel()
    return _results([(part, tasks[replace(part, param="")]) for part in parts])


def _check_number(parts: Sequence[ImagePart], max_images: int, num_choices: int) -> None:
    most = max_images // num_choices
    if len(parts) > most:
        for_each = f" with {num_choices} choices" if num_choices > 1 else ""
        message = f"at most {most} images are taken{for_each}, this is one more"
        raise RequestRefused([Problem(parts[most].param, message)])


async def _prepare(
    part: ImagePart, ask: VisionPort, request_id: str, turn: asyncio.Semaphore
) -> PreparedImage:
    async with turn:
        encoded = part.data_base64
        if encoded is None:
            return await ask(request_id, part, None)
        if len(encoded) <= _INLINE_DECODE_CHARS:
            return await ask(request_id, part, base64.b64decode(encoded))
        return await ask(request_id, part, await asyncio.to_thread(base64.b64decode, encoded))


def _results(
    asked: Sequence[tuple[ImagePart, asyncio.Task[PreparedImage]]],
) -> list[PreparedImage]:
    problems: list[Problem] = []
    errors = [(part, task.exception()) for part, task in asked]
    for part, error in errors:
        if isinstance(error, ServingError) and error.code in _BLAMED:
            code = error.code
            if code is ErrorCode.REQUEST_TOO_LARGE:
                code = ErrorCode.INVALID_REQUEST
            problems.append(Problem(part.param, error.message, code))
        elif error is not None:
            raise error
    if problems:
        raise RequestRefused(problems)
    return [task.result() for _, task in asked]


def image_token_of(rendered: RenderedPrompt) -> int:
    """The one id that stands for every image of the prompt."""
    (token_id,) = {s.token_id for s in rendered.segments if isinstance(s, Image)}
    return token_id


def expand(
    prompt: bytes, token_id: int, parts: Sequence[ImagePart], images: Sequence[PreparedImage]
) -> tuple[bytes, tuple[PlacedImage, ...]]:
    """The prompt with each placeholder repeated for all tokens of its image.

    prompt: int32 little endian, holding token_id once for each image and nowhere else.
    """
    ids = np.frombuffer(prompt, dtype=_TOKEN_TYPE)
    (places,) = np.nonzero(ids == token_id)
    if len(places) != len(images):
        raise ValueError(f"{len(places)} placeholders for {len(images)} images")
    counts = np.array([image.num_tokens for image in images])
    repeats = np.ones(len(ids), dtype=np.int64)
    repeats[places] = counts
    firsts = places + np.concatenate([[0], np.cumsum(counts - 1)[:-1]])
    placed = tuple(
        PlacedImage(int(first), part.param, image)
        for first, part, image in zip(firsts, parts, images, strict=True)
    )
    return np.repeat(ids, repeats).tobytes(), placed


PrepareImages = Callable[[Sequence[ImagePart]], Awaitable[list[PreparedImage]]]


async def num_extra_tokens(images: Sequence[ImagePart], prepare: PrepareImages | None) -> int:
    """Tokens that images take beside their placeholders."""
    if not images or prepare is None:
        return 0
    return sum(image.num_tokens - 1 for image in await prepare(images))
