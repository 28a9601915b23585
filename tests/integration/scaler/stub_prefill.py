"""An instance that computes nothing: it reports its load and drains when asked.

STUB_MODE: `fails` ends at once, `stubborn` ignores every wish to stop.
"""

import asyncio
import contextlib
import os
import signal
import sys

from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_runtime.service import open_service, run, run_until_signal
from rorqual_runtime.settings import RuntimeSettings


def fill(report: LoadReport) -> None:
    report.prefill.tokens_per_s = 1000.0


async def never_drains(_timeout_s: float) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        with contextlib.suppress(asyncio.CancelledError):  # nor does it heed its time
            await asyncio.sleep(600)


async def main() -> None:
    async with open_service("prefill", RuntimeSettings()) as ctx:
        ctx.report_load(fill)
        ctx.mark_ready()
        stubborn = os.environ.get("STUB_MODE") == "stubborn"
        await run_until_signal(ctx, never_drains if stubborn else None)


if __name__ == "__main__":
    if os.environ.get("STUB_MODE") == "fails":
        sys.exit(3)
    run(main())
