"""Sizes and token counts of images, by the model's own rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rorqual_engine.errors import CorruptModel
from rorqual_engine.models.deepseek.image_fit import fit_image
from rorqual_engine.models.deepseek.image_size import ImageRules, plan_image

RULES = ImageRules()


@pytest.mark.parametrize(
    ("width", "height", "num_tokens"),
    [(544, 544, 184), (1024, 768, 496), (1920, 1080, 968), (1, 1, 184), (100, 100, 184)],
)
def test_published_sizes(width: int, height: int, num_tokens: int) -> None:
    assert plan_image(width, height, RULES).num_tokens == num_tokens


def test_a_side_is_rounded_up_to_patches_not_to_tokens() -> None:
    plan = plan_image(1024, 768, RULES)
    assert (plan.width, plan.height) == (1036, 770)
    assert (plan.num_rows, plan.num_columns) == (19, 25)


def test_a_strip_becomes_one_line_of_tokens() -> None:
    wide = plan_image(100_000, 10, RULES)
    assert (wide.num_rows, wide.num_columns, wide.num_tokens) == (1, 1021, 1024)
    tall = plan_image(10, 100_000, RULES)
    assert (tall.num_rows, tall.num_columns, tall.num_tokens) == (511, 1, 1024)


def test_low_detail_takes_a_fifth_of_the_tokens() -> None:
    assert plan_image(1920, 1080, RULES.for_detail("low")).num_tokens <= 204
    assert plan_image(1920, 1080, RULES.for_detail("auto")).num_tokens == 968


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 20_000),
    st.integers(1, 20_000),
    st.sampled_from([RULES, ImageRules(min_pixels=7056, max_tokens=64), ImageRules(max_tokens=4)]),
    st.sampled_from([None, 2.5, 8]),
)
def test_no_image_takes_more_tokens_than_allowed(
    width: int, height: int, rules: ImageRules, ratio: float | None
) -> None:
    rules = ImageRules(14, 3, rules.min_pixels, rules.max_tokens, ratio)
    plan = plan_image(width, height, rules)
    assert plan.num_tokens <= rules.max_tokens
    assert plan.width % 14 == 0
    assert plan.height % 14 == 0
    assert plan.num_rows == -(-plan.height // 42)
    assert plan.num_columns == -(-plan.width // 42)


def test_a_wide_image_is_narrowed_where_the_model_says_so() -> None:
    plan = plan_image(4000, 200, ImageRules(max_wh_ratio=8))
    assert plan.is_stretched
    assert plan.width == pytest.approx(8 * plan.height, rel=0.05)


def test_an_image_keeps_its_proportions_between_grey_bands() -> None:
    plan = plan_image(544, 400, RULES)
    white = fit_image(Image.new("RGBA", (544, 400), (255, 255, 255, 255)), plan)
    assert white.shape == (plan.height, plan.width, 3)
    values = set(np.unique(white[:, plan.width // 2]).tolist())
    assert 255 in values
    assert values <= {127, 255}


def test_the_rules_come_from_vision_config_by_either_name() -> None:
    tiny = {"patch_size": 14, "downsample": 3, "min_pixels": 7056, "max_tokens": 64}
    published = {"downsample_ratio": 3, "max_image_tokens": 64, "min_pixels": 7056}
    expected = ImageRules(14, 3, 7056, 64)
    assert ImageRules.from_config(tiny) == ImageRules.from_config(published) == expected
    with pytest.raises(CorruptModel, match=r"vision_config\.max_tokens"):
        ImageRules.from_config({"max_tokens": "many"})
