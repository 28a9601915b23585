"""`rorqual top`: sums over what instances say."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rorqual_cli.top import render, summary, totals
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_proto.v1.scaler_pb2 import ScaleDecision, ServiceTarget
from rorqual_runtime.discovery import Instance


def instance(service: str, number: int, load: LoadReport | None) -> Instance:
    return Instance(
        service=service,
        id=f"{service}-{number}",
        version="1",
        uptime_s=65.0,
        ready=True,
        draining=False,
        load=load,
        address="",
        host="",
        pid=1,
        incarnation=1,
        num_requests=3,
        num_errors=0,
    )


def decode(num_running: int, step_s: float) -> LoadReport:
    report = LoadReport(service="decode")
    report.decode.num_running, report.decode.max_running = num_running, 64
    report.decode.step_s = step_s
    return report


def test_sums_of_a_fleet() -> None:
    kvmeta = LoadReport()
    kvmeta.kvmeta.asked_blocks_total, kvmeta.kvmeta.matched_blocks_total = 8, 2
    found = totals(
        [
            instance("decode", 1, decode(8, 0.02)),
            instance("decode", 2, decode(4, 0.01)),
            instance("decode", 3, decode(0, 0.0)),
            instance("kvmeta", 1, kvmeta),
            instance("router", 1, None),
        ]
    )
    assert found.num_running == 12 and found.max_running == 192
    assert found.tokens_per_s == pytest.approx(800.0)
    assert found.hit_share == pytest.approx(0.25)
    assert "12/192 running" in summary(found) and "25% of blocks hit" in summary(found)


def test_an_empty_fleet_and_one_without_figures_can_be_shown() -> None:
    assert totals([]).hit_share is None
    out = io.StringIO()
    Console(file=out, width=160).print(render([instance("router", 1, None)]))
    assert "router-1" in out.getvalue() and "1m05s" in out.getvalue()


def test_what_the_scaler_decided_is_shown_with_its_reason() -> None:
    target = ServiceTarget(
        service="decode", num_running=2, num_pending=1, num_desired=4, num_change=1, reason="full"
    )
    out = io.StringIO()
    console = Console(file=out, width=160)
    console.print(render([instance("scaler", 1, None)], ScaleDecision(targets=[target])))
    row = next(line for line in out.getvalue().splitlines() if line.startswith("decode"))
    assert row.split() == ["decode", "2", "1", "4", "+1", "full"]
    console.print(render([], ScaleDecision(targets=[target], driver="none")))
    assert "dry run" in out.getvalue()
