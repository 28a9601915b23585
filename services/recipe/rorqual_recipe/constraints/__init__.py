"""What an answer is held to while it is generated."""

from rorqual_recipe.constraints.answer import answer_constraint

__all__ = ["answer_constraint"]
