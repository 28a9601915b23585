"""Fixtures of the whole-fleet tests."""

from tests.support.fleet import fleet

__all__ = ["fleet"]
