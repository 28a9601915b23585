"""Where a prompt begins: as late as its stored blocks and the windows behind them allow."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_engine.batch import SequenceChunk
from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_prefill.job import Job, JobKey
from rorqual_prefill.resume import PromptWindow, Resume, choose_resume


def make_job(**fields) -> Job:
    defaults = {
        "key": JobKey("r", 0),
        "model": "tiny",
        "num_prompt_tokens": 300,
        "max_new_tokens": 8,
        "cache_namespace": "n",
        "recipe_id": "recipe-1",
        "deadline_unix_s": 0.0,
        "num_matched_blocks": 0,
        "kv_lease_id": "",
        "submitted_unix_s": 0.0,
        "prompt": None,
        "generation": None,
        "compiled_grammar": None,
    }
    return Job(**{**defaults, **fields})


def _none(num_stored: int) -> int:
    return 0


def _one_block(num_stored: int) -> int:
    return min(num_stored, BLOCK_TOKENS)


def _all(num_stored: int) -> int:
    return num_stored


def _kept(*blocks: int):
    return lambda n: n in blocks


def test_without_windows_every_stored_block_counts() -> None:
    assert choose_resume(3, _none, _kept()) == Resume(384, 384, False)
    assert choose_resume(0, _none, _kept()) == Resume(0, 0, False)


def test_a_missing_window_costs_a_block_of_rows() -> None:
    assert choose_resume(3, _one_block, _kept()) == Resume(256, 384, False)


def test_a_kept_window_costs_nothing() -> None:
    assert choose_resume(3, _one_block, _kept(3)) == Resume(384, 384, True)


def test_a_window_one_block_before_beats_a_replay_of_as_many_rows() -> None:
    assert choose_resume(3, _one_block, _kept(2)) == Resume(256, 256, True)


def test_a_window_far_before_is_of_no_use() -> None:
    assert choose_resume(3, _one_block, _kept(1)) == Resume(256, 384, False)


def test_a_replay_of_everything_uses_no_block() -> None:
    assert choose_resume(1, _one_block, _kept()) == Resume(0, 0, False)
    assert choose_resume(9, _all, _kept()) == Resume(0, 0, False)


def test_a_model_that_can_not_replay_goes_on_from_its_last_window() -> None:
    assert choose_resume(9, _all, _kept(2, 5)) == Resume(640, 640, True)


@settings(max_examples=50)
@given(st.integers(0, 12), st.sets(st.integers(1, 12)), st.sampled_from([_none, _one_block, _all]))
def test_no_choice_would_have_left_fewer_rows(num_blocks, kept, num_replayed) -> None:
    found = choose_resume(num_blocks, num_replayed, lambda n: n in kept)
    assert found.num_stored <= num_blocks * BLOCK_TOKENS
    assert found.first_row >= num_blocks * BLOCK_TOKENS - num_replayed(num_blocks * BLOCK_TOKENS)
    assert all(found.first_row >= n * BLOCK_TOKENS for n in kept if n <= num_blocks)
    if not found.has_window:
        replayed = found.num_stored - found.first_row
        assert replayed == num_replayed(found.num_stored)


def test_a_chunk_ends_where_the_window_is_kept() -> None:
    window = PromptWindow(0, keep_at=256)
    assert [window.cut(0, 512), window.cut(128, 64), window.cut(256, 44)] == [256, 64, 44]
    assert PromptWindow(0).cut(0, 512) == 512


def test_rows_of_an_answer_run_as_they_did_in_decode() -> None:
    window = PromptWindow(0, keep_at=256, answer_at=200)
    assert [window.cut(0, 512), window.cut(200, 512), window.cut(256, 44)] == [200, 56, 44]
    chunks = [SequenceChunk(range(size), start, [0]) for start, size in ((0, 100), (100, 100))]
    chunks.append(SequenceChunk(range(56), 200, [0]))
    for chunk in chunks:
        window.prepare(chunk)
    assert [(c.defers_late, c.ends_prompt) for c in chunks] == [
        (True, False),
        (True, True),
        (False, False),
    ]


def test_only_the_first_chunk_of_a_replay_is_told_what_came_before() -> None:
    window = PromptWindow(7, floor=128, num_stored=256, previous_ids=(4, 5))
    chunks = [SequenceChunk((1,), start, [0, 1, 2]) for start in (128, 256)]
    for chunk in chunks:
        window.prepare(chunk)
    assert [chunk.previous_ids for chunk in chunks] == [(4, 5), ()]
    assert {(c.window, c.window_floor, c.num_stored, c.defers_late) for c in chunks} == {
        (7, 128, 256, True)
    }


def test_a_jobs_estimate_counts_what_runs_again() -> None:
    job = make_job(num_prompt_tokens=700, num_matched_blocks=5)
    assert job.estimated_compute_tokens(_none) == 60
    assert job.estimated_compute_tokens(_one_block) == 188
    assert job.estimated_compute_tokens(_all) == 700
    whole = make_job(num_prompt_tokens=640, num_matched_blocks=5)
    assert whole.estimated_compute_tokens(_none) == 128
