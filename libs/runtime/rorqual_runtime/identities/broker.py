"""The table of rights as a configuration of nats-server."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rorqual_runtime.identities.bus_rights import BUS_RIGHTS, receive_subjects, send_subjects

SIGN_IN_S = 10
"""For a client to prove who it is: a busy machine takes its time."""
ANSWER_WITHIN = "15m"
"""How long after a question its answer is let through; longer than any handler runs."""


CUT_OFF_S = 3
"""A connection from which nothing came for so long has gone: until NATS says so, a part of what
goes to one instance of many would go there."""
_PING_MAX = 2
_LIVENESS = {"ping_interval": f"{CUT_OFF_S // (_PING_MAX + 1)}s", "ping_max": _PING_MAX}


def liveness() -> str:
    """How soon the server gives up on a silent client."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in _LIVENESS.items())


def authorization(public_keys: Mapping[str, str]) -> str:
    """`authorization` block: only these identities get in, each with its own rights.

    public_keys: by identity.
    """
    users = [
        {"nkey": public_key, "permissions": _permissions(identity)}
        for identity, public_key in sorted(public_keys.items())
    ]
    return f"authorization: {json.dumps({'timeout': SIGN_IN_S, 'users': users}, indent=2)}\n"


def _permissions(identity: str) -> dict[str, object]:
    sends = send_subjects(identity)
    permissions: dict[str, object] = {
        # an empty list would allow everything
        "publish": {"allow": sends} if sends else {"deny": [">"]},
        "subscribe": {"allow": receive_subjects(identity)},
    }
    rights = BUS_RIGHTS[identity]
    if rights.is_service and not rights.askers:
        permissions["allow_responses"] = {"max": 1, "expires": ANSWER_WITHIN}
    return permissions
