"""The table of faults as a page: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rorqual_cli.chaos.plan import TABLE, Fault
from rorqual_cli.chaos.verdict import Verdict

_HEAD = """\
# Faults

Each row is a run of `rorqual chaos --table docs/faults.md`: a fleet of two of every service (one
scaler, NATS, Redis) under {num_clients} clients that ask one thing after another, greedy, in three
protocols and several sizes, some in a shape and some with an image. A fault strikes, is mended
after the time it names, and the load goes on until the fleet is whole again and for 3 s more.
Every answer is compared with that of a calm day.

Clients go on elsewhere when their connection breaks (`Idempotency-Key`, `Last-Event-ID`); an error
is an answer lost. What is killed, the fleet itself starts again, NATS with its store, Redis with
its last snapshot. A half-open connection is never mended: whoever has it has to make a new one.
Stalls are those of the streams in mid-answer when the fault struck. Load is the machine's average
of the last minute at the end of the row; it has {num_cores} cores.

{num_rows} of {num_faults} faults have a row{unmeasured}; rows of different runs stand beside each
other. A row with something lost, wrong or leaked is open. Of the stalls the goal is a
P50 of {p50_goal_s:g} s and a longest of {worst_goal_s:g} s{over}.

What is stopped or cut off is given up after 3 s of silence, a decode instance after 3.5 s, lest one
that is only slow counts as dead, and its answers are then computed again elsewhere: the busier
the machine, the longer that takes. The streams of a gateway that is stopped wait for as long as it
is; their clients may leave it and go on at another one.

| fault | requests | lost | wrong | leaked | resumed | P50 stall | longest | whole again | load |
|---|---|---|---|---|---|---|---|---|---|
"""

P50_GOAL_S, WORST_GOAL_S = 1.0, 5.0
_P50_CELL, _WORST_CELL = 6, 7


@dataclass(frozen=True, slots=True)
class Row:
    """back_s: from the fault until all of the fleet was ready again. load1: of the machine."""

    fault: Fault
    verdict: Verdict
    back_s: float
    load1: float


def render_table(
    rows: Sequence[Row], *, num_clients: int, num_cores: int, earlier: str = ""
) -> str:
    """The whole page, in Markdown. earlier: a page whose rows of other faults stay."""
    lines = {_name_in(line): line + "\n" for line in earlier.splitlines() if _name_in(line)}
    lines |= {row.fault.name: _line(row) for row in rows}
    known = [lines[fault.name] for fault in TABLE if fault.name in lines]
    head = _HEAD.format(
        num_clients=num_clients,
        num_cores=num_cores,
        num_rows=len(known),
        num_faults=len(TABLE),
        unmeasured="" if len(known) == len(TABLE) else ", the others have not been measured",
        p50_goal_s=P50_GOAL_S,
        worst_goal_s=WORST_GOAL_S,
        over=_over_goals(known),
    )
    return head + "".join(known)


def _over_goals(lines: Sequence[str]) -> str:
    over = [name for name, p50_s, worst_s in map(_stalls_in, lines) if _is_over(p50_s, worst_s)]
    return "; over one of them: " + "; ".join(f"`{name}`" for name in over) if over else ""


def _is_over(p50_s: float, worst_s: float) -> bool:
    return p50_s > P50_GOAL_S or worst_s > WORST_GOAL_S


def _stalls_in(line: str) -> tuple[str, float, float]:
    cells = line.removeprefix("| ").split(" | ")
    p50_s, worst_s = (float(cells[at].split()[0]) for at in (_P50_CELL, _WORST_CELL))
    return cells[0], p50_s, worst_s


def _name_in(line: str) -> str:
    """Of the fault that this line is about; "" = none."""
    name = line.removeprefix("| ").partition(" |")[0]
    return name if any(fault.name == name for fault in TABLE) else ""


def _line(row: Row) -> str:
    v = row.verdict
    cells = (
        row.fault.name,
        *(v.requests, v.lost, v.wrong, v.leaked, v.resumed),
        *(f"{seconds:.1f} s" for seconds in (v.p50_stall_s, v.worst_stall_s, row.back_s)),
        f"{row.load1:.0f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |\n"
