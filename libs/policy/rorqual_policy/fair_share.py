"""Fair shares of prefill between tenants: deficit round robin."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FairShare:
    """Whose turn it is, and what each tenant with waiting work has been granted and not used.

    Carried from one decision to the next; only tenants with waiting work are in it, so it is as
    large as they are many.
    """

    turns: tuple[str, ...] = ()
    """Tenants in the order of their turns; the first one's is under way."""
    credit_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of work, >= 0."""


@dataclass(frozen=True, slots=True)
class FairDecision:
    """The tenant whose first request goes next, None when nobody waits; and the state after it."""

    tenant: str | None
    state: FairShare


def choose_tenant(
    state: FairShare,
    waiting: Sequence[tuple[str, float]],
    quantum_s: float,
    weights: Mapping[str, float] | None = None,
    passed_over: Collection[str] = (),
) -> FairDecision:
    """Next tenant, so that over time each of those that wait gets work in proportion to its weight.

    waiting: (tenant, seconds of work of its first request), one a tenant, in order of their first
    waiting; a tenant that comes into it for the first time has the last turn. quantum_s: granted
    with each turn, times the weight (1 by default). A tenant's lead over another of equal weight
    is at most one largest request and one quantum. What a tenant did not use it keeps only while
    it waits: nobody saves up. passed_over: tenants that wait for something else than what is given
    now; they keep their credit and get none.

    Raises: ValueError unless quantum_s and weights > 0 and work >= 0.
    """
    weights = weights or {}
    head_s = dict(waiting)
    if quantum_s <= 0 or any(work_s < 0 for work_s in head_s.values()):
        raise ValueError(f"need quantum_s > 0 and work >= 0; got {quantum_s}, {waiting}")
    if any(weights.get(tenant, 1.0) <= 0 for tenant in head_s):
        raise ValueError(f"weights must be > 0; got {dict(weights)}")
    present = [tenant for tenant in state.turns if tenant in head_s]
    known = present + [tenant for tenant in head_s if tenant not in state.turns]
    credit_s = {tenant: state.credit_s.get(tenant, 0.0) for tenant in known}
    turns = [tenant for tenant in known if tenant not in passed_over]
    skipped = [tenant for tenant in known if tenant in passed_over]
    if not turns:
        return FairDecision(None, FairShare(tuple(skipped), credit_s))
    grant_s = {tenant: quantum_s * weights.get(tenant, 1.0) for tenant in turns}
    num_rounds = _full_rounds(turns, head_s, credit_s, grant_s)
    for tenant in turns:
        credit_s[tenant] += num_rounds * grant_s[tenant]
    while head_s[turns[0]] > credit_s[turns[0]]:
        turns = [*turns[1:], turns[0]]
        credit_s[turns[0]] += grant_s[turns[0]]
    credit_s[turns[0]] -= head_s[turns[0]]
    return FairDecision(turns[0], FairShare((*turns, *skipped), credit_s))


def _full_rounds(
    turns: Sequence[str],
    head_s: Mapping[str, float],
    credit_s: Mapping[str, float],
    grant_s: Mapping[str, float],
) -> int:
    """Rounds in which nobody's credit would reach its request: granted at once, so that a decision
    takes two rounds at most whatever the size of a request."""
    rounds = min((head_s[t] - credit_s[t]) / grant_s[t] for t in turns)
    return max(0, int(rounds) - 1)
