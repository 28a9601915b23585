"""Fields that take text or a list, with errors that name the field and nothing more."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

_KINDS = {str: "<text>", list: "<list>", type(None): "<null>"}


def _kind(value: Any) -> str | None:
    return _KINDS.get(type(value))


def text_or(items: Any, expected: str) -> Any:
    """A type: text, a list of these items, or null."""
    text = Annotated[str, Tag("<text>")]
    choices = text | Annotated[items, Tag("<list>")] | Annotated[None, Tag("<null>")]
    return Annotated[
        choices,
        Discriminator(
            _kind, custom_error_type="wrong_type", custom_error_message=f"must be {expected}"
        ),
    ]
