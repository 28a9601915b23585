"""What can be wrong with an image."""

from __future__ import annotations


class BadImage(Exception):
    """An image that can't be used; the text is for the person who sent it."""
