"""Names of a request: the client's own, and ours that never repeats."""

import re
import secrets
from dataclasses import dataclass

_CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class RequestIds:
    """request_id: unique inside the fleet. echoed: goes back in X-Request-Id."""

    request_id: str
    echoed: str


def name_request(client_id: str) -> RequestIds:
    """Take the client's id when it is well formed; a suffix keeps ours unique if it repeats."""
    if _CLIENT_ID.fullmatch(client_id):
        return RequestIds(f"{client_id}-{secrets.token_hex(4)}", client_id)
    fresh = secrets.token_hex(12)
    return RequestIds(fresh, fresh)
