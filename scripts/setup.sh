#!/usr/bin/env bash
# Creates .venv and installs every local distribution at the pinned versions; touches .venv/.installed.
set -euo pipefail
cd "$(dirname "$0")/.."

need_gb=6

fail() { echo "setup: $1; remedy: $2" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer was not found" "apt-get install -y python3 python3-venv, or make PYTHON=/path/to/python3.11 ..."
}

check_machine() {
    "$1" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$1 has no venv module" "apt-get install -y python3-venv"
    local free_gb
    free_gb=$(($(df -Pk . | awk 'NR == 2 { print $4 }') / 1024 / 1024))
    ((free_gb >= need_gb)) ||
        fail "$free_gb GB free in $PWD, the environment and the default model need $need_gb GB" "free some disk space"
}

python=$(find_python)
if [[ ! -x .venv/bin/pip ]]; then
    check_machine "$python"
    echo "setup: creating .venv with $("$python" --version)"
    rm -rf .venv
    said=$("$python" -m venv .venv 2>&1) || fail "no .venv: ${said##*$'\n'}" "apt-get install -y python3-venv"
    .venv/bin/pip install --disable-pip-version-check --quiet -c constraints.txt pip
fi
echo "setup: installing packages at the versions of constraints.txt (a few minutes the first time)"
.venv/bin/pip install --disable-pip-version-check -c constraints.txt -r requirements-dev.txt |
    { grep --line-buffered -v '^Requirement already satisfied' || true; }
touch .venv/.installed
echo "setup: done"
