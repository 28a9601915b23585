"""What is served, as each family of clients lists it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rorqual_gateway.convert import Model
from rorqual_gateway.dialects import ANTHROPIC, Dialect


def model_list(models: Sequence[Model], dialect: Dialect) -> dict[str, Any]:
    """The answer of `GET /v1/models`."""
    shown = [model_object(model, dialect) for model in models]
    if dialect is not ANTHROPIC:
        return {"object": "list", "data": shown}
    first_id = models[0].id if models else None
    last_id = models[-1].id if models else None
    return {"data": shown, "has_more": False, "first_id": first_id, "last_id": last_id}


def model_object(model: Model, dialect: Dialect) -> dict[str, Any]:
    """One model."""
    if dialect is ANTHROPIC:
        created = datetime.fromtimestamp(model.created_unix_s, UTC)
        return {
            "type": "model",
            "id": model.id,
            "display_name": model.id,
            "created_at": created.isoformat().replace("+00:00", "Z"),
        }
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_unix_s,
        "owned_by": "rorqual",
        "max_model_len": model.max_context_tokens,
    }
