"""A process may have had a group before: the next one is found all the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rorqual_engine.parallel import GroupLost, ProcessExchange


def test_a_group_that_never_came_together_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(GroupLost):
        ProcessExchange(f"file://{tmp_path}/nobody", 0, 2, timeout_s=0.5)
    for attempt in range(2):
        address = f"file://{tmp_path}/{attempt}"
        with ThreadPoolExecutor(2) as pool:
            ranks = list(
                pool.map(
                    lambda rank, at=address: ProcessExchange(at, rank, 2, timeout_s=30.0), range(2)
                )
            )
            assert list(pool.map(lambda each: each.agree(each.rank + 5), ranks)) == [[5, 6]] * 2
            for each in ranks:
                each.close()
