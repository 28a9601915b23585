"""The exchange of rows between ranks over NCCL, with a group of one."""

from __future__ import annotations

import socket

import pytest
import torch
from rorqual_engine.parallel import ExpertPlacement, ProcessExchange


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
        to = ExpertPlacement.even(4, 1).destinations(experts, 0)
        arrived = exchange.dispatch(x, to, weights)
        assert torch.equal(arrived.experts, experts.flatten())
        found = exchange.combine(arrived.rows, arrived)
        expected = x.float() * weights[:, :1] + x.float() * weights[:, 1:]
        assert torch.equal(found, expected)
        assert exchange.agree(3) == [3]
    finally:
        exchange.close()
