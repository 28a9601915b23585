"""A tenant over its quota gives up what is over and a little more; the others nothing."""

from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.quotas import Quotas, bytes_to_free

USAGE = st.dictionaries(st.integers(0, 5), st.integers(0, 10_000))


@given(USAGE, st.integers(0, 5000), USAGE)
def test_who_is_over_ends_below(used, default, own):
    quotas = Quotas(default, own, slack=0.1)
    freed = bytes_to_free(used, quotas)
    for tenant, num_bytes in used.items():
        quota = quotas.of(tenant)
        if not quota or num_bytes <= quota:
            assert tenant not in freed
        else:
            assert num_bytes - freed[tenant] <= quota
            assert num_bytes - freed[tenant] >= int(quota * 0.9)


def test_without_a_quota_nobody_gives_up_anything():
    assert bytes_to_free({1: 10**15}, Quotas()) == {}
