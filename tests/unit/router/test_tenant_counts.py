"""How many jobs a tenant has waiting: reports of all routers, and what they can't show yet."""

from rorqual_router.tenant_counts import REPORTED_TENANTS, TenantCounts, largest
from rorqual_runtime.clock import ManualClock


async def test_reports_count_while_they_are_fresh_and_submissions_until_reports_have_them():
    clock = ManualClock()
    counts = TenantCounts(clock)
    counts.hear("router-1", {"a": 3})
    counts.hear("router-2", {"a": 1, "b": 5})
    counts.note("a", 2)
    assert (counts.waiting("a"), counts.waiting("b"), counts.waiting("c")) == (6, 5, 0)
    await clock.advance(1.0)
    counts.hear("router-2", {"a": 4})
    assert counts.waiting("a") == 7
    await clock.advance(1.5)
    assert counts.waiting("a") == 4  # router-1 is gone


def test_a_report_names_the_largest_few():
    counts = {f"t{number:03}": number for number in range(200)}
    named = largest(counts)
    assert len(named) == REPORTED_TENANTS
    assert min(named.values()) == 200 - REPORTED_TENANTS
