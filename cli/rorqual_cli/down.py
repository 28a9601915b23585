"""`rorqual down`: end the fleet of a home directory, and whatever an earlier one left behind."""

from __future__ import annotations

import signal
from pathlib import Path

from rorqual_cli.problems import CliError
from rorqual_cli.report import Reporter
from rorqual_cli.state import FleetState, read_state, remove_state

_TERM_GRACE_S = 5.0
_KILL_GRACE_S = 3.0


def down(home: Path, report: Reporter) -> int:
    """Drain and stop, as long as that may take the fleet; nothing of it runs when this returns.

    Raises: CliError when a process survives SIGKILL.
    """
    state = read_state(home)
    if state is None:
        report.say(f"no fleet is running in {home}")
        return 0
    if state.supervisor.identity.send_signal(signal.SIGTERM):
        report.say(f"stopping the fleet at {state.base_url} (pid {state.supervisor.pid})")
        if not state.supervisor.identity.wait(state.stop_s):
            report.say(f"it did not stop within {state.stop_s:.0f} s and is killed")
            state.supervisor.identity.send_signal(signal.SIGKILL)
            state.supervisor.identity.wait(_KILL_GRACE_S)
    _end_left_behind(read_state(home) or state, report)
    remove_state(home)
    report.say("stopped")
    return 0


def _end_left_behind(state: FleetState, report: Reporter) -> None:
    left = [record for record in state.processes if record.identity.is_alive]
    for number, grace_s in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, _KILL_GRACE_S)):
        for record in left:
            report.say(f"ending {record.name} (pid {record.pid}) with {number.name}")
            record.identity.send_signal(number)
        left = [record for record in left if not record.identity.wait(grace_s)]
        if not left:
            return
    raise CliError(f"these processes do not end: {', '.join(str(r.pid) for r in left)}")
