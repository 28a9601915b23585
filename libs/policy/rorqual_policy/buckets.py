"""Length buckets of the prefill queue."""

from enum import StrEnum

_K = 1024


class Bucket(StrEnum):
    """Prompt length class; the value names the queue subject. Declared from short to long."""

    LT16K = "lt16k"
    LT64K = "lt64k"
    LT256K = "lt256k"
    GE256K = "ge256k"


_LIMITS = (
    (16 * _K, Bucket.LT16K),
    (64 * _K, Bucket.LT64K),
    (256 * _K, Bucket.LT256K),
)

BUCKET_LIMITS_TOKENS = tuple(limit_tokens for limit_tokens, _ in _LIMITS)
"""First length of every bucket but the shortest."""


def choose_bucket(num_tokens: int) -> Bucket:
    """Bucket of a prompt by its whole length, cached or not: length decides its attention cost."""
    if num_tokens < 0:
        raise ValueError(f"num_tokens must be >= 0, got {num_tokens}")
    for limit_tokens, bucket in _LIMITS:
        if num_tokens < limit_tokens:
            return bucket
    return Bucket.GE256K


def bucket_number(bucket: Bucket) -> int:
    """Place of a bucket from short to long, 0 first."""
    return tuple(Bucket).index(bucket)
