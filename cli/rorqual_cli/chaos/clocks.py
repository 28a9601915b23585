"""Wall clocks of running services, set from here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_HOOK = Path(__file__).with_name("clock_hook")


class Clocks:
    """The wall clock of all Python code in processes that are started with `env`. Monotonic clocks
    run on, as when a machine's time is corrected."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"

    def env(self) -> Mapping[str, str]:
        """For the processes."""
        path = os.pathsep.join(filter(None, (str(_HOOK), os.environ.get("PYTHONPATH"))))
        return {"PYTHONPATH": path, "CHAOS_CLOCK_FILE": str(self._file)}

    def jump(self, by_s: float) -> None:
        """So far from the true time; seen within a moment."""
        self._file.write_text(f"{by_s:g}")
