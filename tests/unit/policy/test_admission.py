"""The queue has a cap, and a refusal says when to come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy import QueueState, decide_admission


@given(st.integers(0, 300), st.integers(1, 8))
def test_the_cap_is_never_passed(num_queued, num_new):
    admission = decide_admission(QueueState(num_queued, 256), num_new)
    assert admission.accepted == (num_queued + num_new <= 256)
    assert admission.accepted == (admission.retry_after_s == 0)


@pytest.mark.parametrize(
    ("tokens_per_job", "tokens_per_s", "retry_after_s"),
    [(0, 0, 2), (100, 0, 2), (100, 1000, 13), (1, 10_000, 1), (10_000, 100, 60)],
)
def test_retry_after_follows_the_drain_rate(tokens_per_job, tokens_per_s, retry_after_s):
    queue = QueueState(256, 256, tokens_per_job, tokens_per_s)
    assert decide_admission(queue, 1).retry_after_s == retry_after_s
