"""Which of the reserved pages take the prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rorqual_decode.page_fetch import is_one_run, prompt_first_order


@given(st.sets(st.integers(0, 40), min_size=1), st.data())
def test_the_prompt_lies_in_one_run_whenever_the_pages_allow_it(pages, data):
    num_prompt = data.draw(st.integers(1, len(pages)))
    ordered = prompt_first_order(sorted(pages, reverse=True), num_prompt)
    assert sorted(ordered) == sorted(pages)
    possible = any(all(p + n in pages for n in range(num_prompt)) for p in pages)
    assert is_one_run(ordered[:num_prompt]) == possible
