"""`python -m tests.fuzz.over_openapi [--examples N] [--seed N]`: what the published API allows, and
what it does not, to a gateway that asks for keys; schemathesis makes the requests.

No answer may be a server error, and without a key nothing is answered that wants one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.fuzz.over_http import running_fleet

KEY = "fuzzing-key"
_CHECKS = "not_a_server_error,ignored_auth"
_PHASES = "examples,coverage,fuzzing"
_MAX_ANSWER_S = 60
_ROOT = Path(__file__).parents[2]


async def run(num_examples: int, seed: int) -> int:
    """The exit code of schemathesis: 0 when everything held."""
    with tempfile.TemporaryDirectory() as directory:
        keys = {"RORQUAL_GATEWAY_API_KEYS": f"fuzz:{KEY}"}
        async with running_fleet(Path(directory), gateway_env=keys) as fleet:
            process = await asyncio.create_subprocess_exec(
                *(str(Path(sys.executable).with_name("schemathesis")), "run"),
                f"http://127.0.0.1:{fleet.port}/openapi.json",
                *("--header", f"Authorization: Bearer {KEY}"),
                *("--checks", _CHECKS, "--phases", _PHASES, "--no-shrink"),
                *("--max-examples", str(num_examples), "--seed", str(seed)),
                *("--request-timeout", str(_MAX_ANSWER_S), "--suppress-health-check", "all"),
                *("--exclude-path", "/ready"),  # router and decode are played, and it says so: 503
                cwd=directory,
                env={
                    **os.environ,
                    "SCHEMATHESIS_HOOKS": "tests.fuzz.openapi_hooks",
                    "PYTHONPATH": str(_ROOT),
                },
            )
            try:
                return await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()


def main() -> int:
    """Run; not 0 when an answer was a server error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100, help="of each operation")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return asyncio.run(run(options.examples, options.seed))


if __name__ == "__main__":
    sys.exit(main())
