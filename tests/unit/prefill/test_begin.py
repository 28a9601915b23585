"""Why a prompt is not computed from later on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rorqual_prefill.begin import Work, why_no_later
from rorqual_prefill.fetch import Promise

from tests.unit.prefill.test_resume import make_job


def make_work(*, slot: int | None = None, missing: int = 0, **job: Any) -> Work:
    """A prompt of three whole blocks and a few tokens more."""
    made = make_job(num_prompt_tokens=400, **job)
    keys = [bytes([number]) * 16 for number in range(3)]
    promise = Promise(made.num_matched_blocks, made.num_exact_blocks)
    fetch = SimpleNamespace(corrupt=[], missing=keys[:missing], promise=promise)
    active, export = SimpleNamespace(job=made), SimpleNamespace()
    return Work(active, np.zeros(400, np.int32), keys, [], slot, export, fetch, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("work", "num_loaded", "first_row", "why"),
    [
        pytest.param({"miss_reason": "never_stored"}, 0, 0, "never_stored", id="nothing"),
        pytest.param({"miss_reason": "expired", "slot": 0}, 3, 384, "", id="more than promised"),
        pytest.param(
            {"num_matched_blocks": 3, "slot": 0}, 3, 0, "no_window", id="all but a window"
        ),
        pytest.param(
            {"miss_reason": "expired", "slot": 0}, 3, 256, "no_window", id="replayed at its end"
        ),
        pytest.param({"num_matched_blocks": 3, "missing": 1}, 2, 256, "evicted", id="one is gone"),
        pytest.param({"num_matched_blocks": 3}, 2, 256, "not_fetched", id="late"),
    ],
)
def test_what_was_missed_is_named_and_nothing_else(
    work: dict[str, Any], num_loaded: int, first_row: int, why: str
) -> None:
    assert why_no_later(make_work(**work), num_loaded, first_row) == why
