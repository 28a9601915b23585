"""Records for tests of the index."""

import numpy as np
from rorqual_kvmeta.records import RECORD, Records, State

NOW = 1_800_000_000.0


def records(
    numbers,
    *,
    state=State.LIVE,
    used=NOW,
    lifetime=1000,
    model=1,
    tenant=1,
    replayed=False,
    **fields,
) -> Records:
    """Records of made-up blocks: equal numbers have equal keys."""
    made = np.zeros(len(numbers), RECORD)
    for row, number in enumerate(numbers):
        made[row]["hi"], made[row]["lo"] = np.random.default_rng(number).integers(
            2, 2**64, 2, dtype=np.uint64
        )
    made["used_unix_s"], made["lifetime_s"] = int(used), lifetime
    made["flags"] = int(state) | (8 if replayed else 0)
    made["model"], made["tenant"], made["size_bytes"], made["store"] = model, tenant, 100, 1
    for name, value in fields.items():
        made[name] = value
    return made
