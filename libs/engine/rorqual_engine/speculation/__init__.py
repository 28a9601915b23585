"""Drafters: who guesses the tokens that a step then checks. See `drafter.Drafter`."""

from rorqual_engine.speculation.drafter import Drafter, Guesses, GuessRequest, Memory, NoDrafter
from rorqual_engine.speculation.registry import open_drafter

__all__ = [
    "Drafter",
    "GuessRequest",
    "Guesses",
    "Memory",
    "NoDrafter",
    "open_drafter",
]
