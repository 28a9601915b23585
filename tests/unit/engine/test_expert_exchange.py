"""The exchange with a group of one: what arrives, what comes back, how it adds up."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rorqual_engine.parallel import ExpertPlacement, GroupLost, ProcessExchange
from rorqual_engine.parallel.load import LayerCounter
from rorqual_engine.parallel.split import StepSplit

from tests.support.waiting import until_blocking


@pytest.fixture(scope="module")
def exchange() -> Iterator[ProcessExchange]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    made = ProcessExchange(address, 0, 1, timeout_s=5.0)
    yield made
    made.close()
    made.close()


@pytest.mark.parametrize("num_rows", [0, 1, 5, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_arrive_with_their_slots_and_come_back(
    exchange: ProcessExchange, num_rows: int, dtype: torch.dtype
) -> None:
    """300 rows of 2 choices are more than a first message holds."""
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, 48, generator=generator).to(dtype)
    experts = torch.randint(0, 4, (num_rows, 2), generator=generator)
    weights = torch.rand(num_rows, 2, generator=generator)
    split = StepSplit(ExpertPlacement(4, ((2, 0, 3, 1),)), 0, exchange)
    to = split.destinations(experts, LayerCounter(4))
    arrived = exchange.dispatch(x, to, weights)
    assert torch.equal(arrived.rows, x.repeat_interleave(2, 0))
    held = torch.tensor([2, 0, 3, 1])
    assert torch.equal(held[arrived.experts], experts.flatten())
    outputs = arrived.rows * (held[arrived.experts] + 1).to(dtype)[:, None]
    found = exchange.combine(outputs, arrived)
    expected = sum(
        (x * (experts[:, k] + 1).to(dtype)[:, None]).float() * weights[:, k, None] for k in (0, 1)
    )
    assert found.dtype == torch.float32 and torch.equal(found, torch.as_tensor(expected))


def test_ranks_tell_each_other_a_number(exchange: ProcessExchange) -> None:
    assert exchange.agree(7) == [7]
    assert exchange.share(torch.tensor([3, 1])).tolist() == [[3, 1]]


def test_a_left_group_leaves_no_threads() -> None:
    """Between CPUs they end with the group alone."""
    before = _num_threads()
    with tempfile.TemporaryDirectory() as directory:
        exchange = ProcessExchange(f"file://{directory}/meet", 0, 1, timeout_s=5.0)
        assert _num_threads() > before
        exchange.close()
    until_blocking(lambda: _num_threads() <= before)
    with pytest.raises(GroupLost, match="it has left"):
        exchange.agree(1)


def _num_threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())
