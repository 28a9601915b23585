#!/usr/bin/env bash
# Creates .venv and installs every local distribution at the pinned versions; touches .venv/.installed
# at the very end, so that whatever ends it early is made good by the next run.
set -euo pipefail
cd "$(dirname "$0")/.."

need_gb=6
num_tries=3
pause_s=3
wait_s=1800

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

# One at a time: make serve and make test may both be started on a fresh checkout.
take_turn() {
    command -v flock >/dev/null || return 0
    exec 9<scripts/setup.sh
    flock -n 9 && return
    echo "setup: another set-up runs in this folder, waiting for it"
    flock -w "$wait_s" 9 || fail "it still runs after $wait_s s" "end it, then try again"
}

check_room() {
    local have_kb used_kb=0
    have_kb=$(df -Pk . | awk 'NR == 2 { print $4 }')
    [[ -d .venv ]] && used_kb=$(du -sk .venv | cut -f1)
    (((have_kb + used_kb) >> 20 >= need_gb)) ||
        fail "$((have_kb >> 20)) GB free in $PWD, the environment and the default model need $need_gb GB" "free some disk space"
}

# Neither half made, nor without its Python by now, nor copied here from another folder.
is_usable() {
    .venv/bin/python -m pip --version >/dev/null 2>&1 && grep -qsF "$(pwd -P)/.venv/" .venv/bin/pip
}

make_venv() {
    local python said
    python=$(find_python)
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module" "apt-get install -y python3-venv"
    echo "setup: creating .venv with $("$python" --version)"
    rm -rf .venv
    said=$("$python" -m venv .venv 2>&1) || fail "no .venv: ${said##*$'\n'}" "apt-get install -y python3-venv"
    install pip setuptools
}

# pip tries each connection again by itself; a download that breaks off ends it. Our own packages
# are built with the setuptools that is here, at first; then as pip does it, each in a place of its own.
install() {
    local try how=(--no-build-isolation)
    for ((try = 1; try <= num_tries; try++)); do
        .venv/bin/python -m pip install --disable-pip-version-check --no-color "${how[@]}" -c constraints.txt "$@" 2>&1 |
            tee .venv/setup.log | progress && return
        how=()
        ((try < num_tries)) && echo "setup: that failed, trying again ($((try + 1)) of $num_tries)" && sleep $((try * pause_s))
    done
    fail "packages could not be installed, pip says why above and in .venv/setup.log" \
        "check the network and pip's proxy settings, then run the same command again"
}

# Large downloads, the long steps and errors, of all that pip says.
progress() {
    sed -unE -e 's/^ *(Downloading|Using cached) ([^ ]+) (\([0-9.]+ [MG]B\)).*/  \1 \2 \3/p' \
        -e 's/^Obtaining file:.*\/([^/ ]+).*/  Building \1/p' \
        -e 's/^Installing collected packages: .*/  Unpacking packages (a minute or two)/p' -e '/^ERROR/p'
}

take_turn
[[ -e .venv/.installed ]] || check_room
rm -f .venv/.installed
is_usable || make_venv
echo "setup: installing packages at the versions of constraints.txt (a few minutes the first time)"
install -r requirements-dev.txt
touch .venv/.installed
echo "setup: done"
