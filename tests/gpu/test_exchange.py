"""The exchange of rows between ranks over NCCL, with a group of one."""

from __future__ import annotations

import socket

import pytest
import torch
from rorqual_engine.parallel import ExpertPlacement, ProcessExchange
from rorqual_engine.parallel.load import LayerCounter
from rorqual_engine.parallel.split import StepSplit


@pytest.mark.parametrize("num_rows", [0, 1, 300])
def test_rows_come_back_weighted(device: str, num_rows: int) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    exchange = ProcessExchange(address, 0, 1, device=torch.device(device), timeout_s=20.0)
    try:
        x = torch.randn(num_rows, 48, dtype=torch.bfloat16, device=device)
        experts = torch.randint(0, 4, (num_rows, 2), device=device)
        weights = torch.rand(num_rows, 2, device=device)
        split = StepSplit(ExpertPlacement.even(4, 1), 0, exchange)
        to = split.destinations(experts, LayerCounter(4))
        arrived = exchange.dispatch(x, to, weights)
        assert torch.equal(arrived.experts, experts.flatten())
        found = exchange.combine(arrived.rows, arrived)
        expected = x.float() * weights[:, :1] + x.float() * weights[:, 1:]
        assert torch.equal(found, expected)
        assert exchange.agree(3) == [3]
        weights = torch.arange(6, dtype=torch.uint8, device=device).view(2, 3)
        assert torch.equal(exchange.move(weights, [2], [2]), weights)
    finally:
        exchange.close()
