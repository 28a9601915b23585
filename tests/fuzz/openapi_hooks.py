"""Loaded by schemathesis: bodies name a model that is served, and so get beyond that check."""

from __future__ import annotations

from typing import Any

import schemathesis

from tests.support.chat_model_dir import MODEL_ID


@schemathesis.hook
def map_body(_context: Any, body: Any) -> Any:
    """The body with the served model's name where it has any name of one."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        return {**body, "model": MODEL_ID}
    return body
