"""Buckets cover all lengths, in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy import Bucket, choose_bucket

K = 1024


@pytest.mark.parametrize(
    ("num_tokens", "bucket"),
    [
        (0, "lt16k"),
        (16 * K - 1, "lt16k"),
        (16 * K, "lt64k"),
        (64 * K - 1, "lt64k"),
        (64 * K, "lt256k"),
        (256 * K - 1, "lt256k"),
        (256 * K, "ge256k"),
        (10**7, "ge256k"),
    ],
)
def test_limits(num_tokens, bucket):
    assert choose_bucket(num_tokens) == bucket


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_longer_prompt_is_never_in_a_shorter_bucket(first, second):
    order = list(Bucket)
    short, long = sorted((first, second))
    assert order.index(choose_bucket(short)) <= order.index(choose_bucket(long))


def test_negative_length_is_refused():
    with pytest.raises(ValueError, match="-1"):
        choose_bucket(-1)
