"""Images in prompts: asked for side by side, expanded in place, refused by their field."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.conversation import ImagePart
from rorqual_recipe.encode import encode_request, with_images
from rorqual_recipe.images import (
    ImageLimits,
    PreparedImage,
    expand,
    image_token_of,
    prepare_images,
)
from rorqual_recipe.model import ServedModel, load_served_model
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.direct import DirectServices
from rorqual_recipe.protocols.messages import CountTokens
from rorqual_recipe.protocols.tokenize import Tokenize
from rorqual_recipe.settings import RecipeSettings
from rorqual_runtime.errors import ErrorCode, InvalidRequest, RequestTooLarge, Unavailable

from tests.support.chat_model_dir import MODEL_ID
from tests.support.dsml_model_dir import make_dsml_model_dir, make_profile
from tests.support.pictures import picture_file

IMAGE_ID = 900


def image_of(num_tokens: int, digest: bytes = b"d") -> PreparedImage:
    return PreparedImage(digest, num_tokens, 9 * num_tokens, None)


def parts_of(count: int) -> list[ImagePart]:
    return [ImagePart(param=f"messages[{i}]", url=f"https://x/{i}") for i in range(count)]


class Vision:
    """As many tokens as the URL's last digit says, or what it fails with."""

    def __init__(self, failures: dict[str, Exception] | None = None) -> None:
        self.failures = failures or {}
        self.asked: list[tuple[str | None, bytes | None]] = []
        self.num_at_once = self.most_at_once = 0

    async def __call__(self, _id: str, part: ImagePart, data: bytes | None) -> PreparedImage:
        self.asked.append((part.url, data))
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await asyncio.sleep(0.01)
        self.num_at_once -= 1
        key = part.url or ""
        if key in self.failures:
            raise self.failures[key]
        return image_of(4 + int(key[-1:] or 0) % 10, key.encode())


async def ask(parts: list[ImagePart], vision: Vision, **limits: int) -> list[PreparedImage]:
    choices = limits.pop("num_choices", 1)
    return await prepare_images(
        parts, ask=vision, request_id="r", limits=ImageLimits(**limits), num_choices=choices
    )


async def test_images_are_asked_for_side_by_side_up_to_a_bound_and_equal_ones_once() -> None:
    vision = Vision()
    parts = [*parts_of(6), ImagePart(param="again", url="https://x/2")]
    found = await ask(parts, vision, max_at_once=3)
    assert [image.num_tokens for image in found] == [4, 5, 6, 7, 8, 9, 6]
    assert len(vision.asked) == 6
    assert vision.most_at_once == 3
    data = base64.b64encode(b"file").decode()
    await ask([ImagePart(param="p", media_type="image/png", data_base64=data)], vision)
    assert vision.asked[-1] == (None, b"file")


async def test_every_bad_image_is_named() -> None:
    failures = {
        "https://x/1": InvalidRequest("not an image", "messages[1]"),
        "https://x/3": RequestTooLarge(10, 5),
    }
    with pytest.raises(RequestRefused) as caught:
        await ask(parts_of(5), Vision(failures))
    assert [problem.param for problem in caught.value.problems] == ["messages[1]", "messages[3]"]
    assert {problem.code for problem in caught.value.problems} == {ErrorCode.INVALID_REQUEST}
    with pytest.raises(Unavailable):
        await ask(parts_of(2), Vision({"https://x/0": Unavailable("no vision")}))


async def test_the_number_of_images_is_bounded_with_the_choices() -> None:
    with pytest.raises(RequestRefused, match=r"messages\[4\]: at most 4 images"):
        await ask(parts_of(5), Vision(), max_images=4)
    with pytest.raises(RequestRefused, match="at most 2 images are taken with 2 choices"):
        await ask(parts_of(3), Vision(), max_images=4, num_choices=2)


@settings(max_examples=60)
@given(
    st.lists(st.one_of(st.integers(0, 50), st.just(IMAGE_ID)), min_size=1, max_size=40), st.data()
)
def test_every_placeholder_becomes_its_images_tokens(ids: list[int], data: st.DataObject) -> None:
    count = ids.count(IMAGE_ID)
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=count, max_size=count))
    if not count:
        return
    prompt = np.array(ids, dtype="<i4").tobytes()
    images = [image_of(size, bytes([i])) for i, size in enumerate(sizes)]
    expanded, placed = expand(prompt, IMAGE_ID, parts_of(count), images)
    left = list(sizes)
    expected = [i for token in ids for i in [token] * (left.pop(0) if token == IMAGE_ID else 1)]
    assert np.frombuffer(expanded, dtype="<i4").tolist() == expected
    for place, size in zip(placed, sizes, strict=True):
        assert expected[place.first_token : place.first_token + size] == [IMAGE_ID] * size
    assert [place.image for place in placed] == images
    ends = [p.first_token + p.image.num_tokens for p in placed]
    assert all(e <= p.first_token for e, p in zip(ends, placed[1:], strict=False))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    directory = tmp_path_factory.mktemp("seeing") / "model"
    make_dsml_model_dir(directory, encoding="deepseek-v4.1", vision_config={"x": 1})
    profile = {**make_profile("deepseek-v4.1"), "image_text": None}
    (Path(directory) / "prompt_profile.json").write_text(json.dumps(profile))
    return load_served_model(RecipeSettings(model_dir=directory))


def data_url(seed: int) -> str:
    return "data:image/png;base64," + base64.b64encode(picture_file(seed)).decode()


def chat_body(**fields: object) -> bytes:
    def image(seed: int) -> dict[str, object]:
        return {"type": "image_url", "image_url": {"url": data_url(seed)}}

    messages = [
        {"role": "user", "content": [{"type": "text", "text": "what is"}, image(1), image(2)]},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": [image(3)]},
    ]
    return json.dumps({"model": MODEL_ID, "messages": messages, **fields}).encode()


def test_a_prompt_with_images_counts_all_their_tokens(model: ServedModel) -> None:
    limits = ParseLimits(max_choices=1, has_vision=True)
    adapter = PROTOCOLS["chat_completions"]
    encoded = encode_request(chat_body(), adapter, model, default_max_tokens=9, limits=limits)
    assert [part.param for part in encoded.rendered.images] == [
        "messages[0].content[1]",
        "messages[0].content[2]",
        "messages[2].content[0]",
    ]
    images = [image_of(8), image_of(30), image_of(14)]
    full = with_images(encoded, images, model, default_max_tokens=9)
    assert full.num_prompt_tokens == encoded.num_prompt_tokens + 7 + 29 + 13
    assert full.num_prompt_tokens * 4 == len(full.prompt)
    ids = np.frombuffer(full.prompt, dtype="<i4")
    assert (ids == image_token_of(encoded.rendered)).sum() == 8 + 30 + 14
    assert [place.param for place in full.images] == [p.param for p in encoded.rendered.images]
    assert full.sampling.max_new_tokens == 9


def test_images_that_fill_the_context_are_refused(model: ServedModel) -> None:
    limits = ParseLimits(max_choices=1, has_vision=True)
    adapter = PROTOCOLS["chat_completions"]
    encoded = encode_request(
        chat_body(max_tokens=100), adapter, model, default_max_tokens=9, limits=limits
    )
    large = [image_of(1), image_of(1), image_of(1 << 20)]
    with pytest.raises(RequestRefused, match="leave no room") as caught:
        with_images(encoded, large, model, default_max_tokens=9)
    assert caught.value.problems[0].code is ErrorCode.CONTEXT_TOO_LONG


def test_truncation_makes_room_for_images(model: ServedModel) -> None:
    """What an image takes is known after truncation: it counts as the largest."""
    image = {"type": "input_image", "image_url": data_url(1)}
    turns = [
        {"role": "user", "content": [image, {"type": "input_text", "text": f"{index}"}]}
        for index in range(2000)
    ]
    body = {"model": MODEL_ID, "input": turns, "truncation": "auto"}
    limits = ParseLimits(max_choices=1, has_vision=True)
    encoded = encode_request(
        json.dumps(body).encode(),
        PROTOCOLS["responses"],
        model,
        default_max_tokens=9,
        limits=limits,
    )
    num_images = len(encoded.rendered.images)
    assert 100 < num_images < 2000
    images = [image_of(model.max_image_tokens)] * num_images
    full = with_images(encoded, images, model, default_max_tokens=9)
    assert full.num_prompt_tokens > model.max_context_tokens * 0.9


async def test_counts_and_tokenize_include_image_tokens(model: ServedModel) -> None:
    async def compute(work, _num_bytes):
        return work()

    async def prepare(parts):
        return [image_of(10 + i) for i in range(len(parts))]

    limits = ParseLimits(max_choices=1, has_vision=True)
    blind = DirectServices(model, limits, compute)
    seeing = DirectServices(model, limits, compute, None, prepare)
    source = {"type": "base64", "media_type": "image/png", "data": data_url(1).partition(",")[2]}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "what"}]
    body = json.dumps({"model": MODEL_ID, "messages": [{"role": "user", "content": content}]})
    counts = []
    for services in (blind, seeing):
        _, answer = await CountTokens().answer(body.encode(), "", "", services)
        counts.append(json.loads(answer)["input_tokens"])
    assert counts[1] == counts[0] + 9
    found = []
    for services in (blind, seeing):
        _, answer = await Tokenize().answer(chat_body(), "", "", services)
        found.append(json.loads(answer))
    assert found[1]["count"] == found[0]["count"] + 9 + 10 + 11 == len(found[1]["tokens"])
