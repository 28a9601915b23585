#!/usr/bin/env bash
# The whole suite: all but whole fleets in one process a core, then the rest, one after the other.
# With arguments: what they say to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."

pytest=(.venv/bin/python -m pytest)
(($#)) && exec "${pytest[@]}" "$@"

apart=(tests/unit tests/contract tests/integration)
workers=$(nproc)
((workers <= 4)) || workers=4
failed=0
"${pytest[@]}" "${apart[@]}" -n "$workers" --dist loadfile --no-loadscope-reorder || failed=1
"${pytest[@]}" "${apart[@]/#/--ignore=}" || failed=1
exit "$failed"
