"""Constraints to compiled grammars."""
