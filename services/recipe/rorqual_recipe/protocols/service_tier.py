"""How urgent a request says it is, in the words of `service_tier`."""

from rorqual_recipe.protocols.notes import Notes

_PRIORITIES = {"priority": 1, "flex": -1}
_USUAL = ("auto", "default", "standard_only")


def read_service_tier(tier: str | None, notes: Notes) -> int:
    """Its priority in the line for prefill; words that mean nothing here are warned of."""
    if tier is not None and tier not in _PRIORITIES and tier not in _USUAL:
        notes.warn("service_tier", "no tier here has this name: the usual one was taken")
    return _PRIORITIES.get(tier or "", 0)


def tier_of(priority: int, *, usual: str) -> str:
    """The word for it in an answer. usual: what the protocol calls the usual tier."""
    return next((tier for tier, known in _PRIORITIES.items() if known == priority), usual)
