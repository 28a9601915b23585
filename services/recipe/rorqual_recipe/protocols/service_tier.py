"""How urgent a request says it is, in the words of `service_tier`."""

_PRIORITIES = {"priority": 1, "flex": -1}
_USUAL = ("auto", "default", "standard", "standard_only")


def read_service_tier(tier: str | None) -> int:
    """Its priority in the line for prefill; every other word means the usual one."""
    return _PRIORITIES.get(tier or "", 0)


def is_service_tier(tier: str | None) -> bool:
    """Whether it means something here; a tier that is not named does."""
    return tier is None or tier in _PRIORITIES or tier in _USUAL


def tier_of(priority: int, *, usual: str) -> str:
    """The word for it in an answer. usual: what the protocol calls the usual tier."""
    return next((tier for tier, known in _PRIORITIES.items() if known == priority), usual)
