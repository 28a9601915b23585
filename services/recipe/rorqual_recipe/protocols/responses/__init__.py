"""The Responses protocol."""

from rorqual_recipe.protocols.responses.adapter import Responses
from rorqual_recipe.protocols.responses.direct import (
    DeleteResponse,
    ListInputItems,
    RetrieveResponse,
)

__all__ = ["DeleteResponse", "ListInputItems", "Responses", "RetrieveResponse"]
