#!/usr/bin/env bash
# Everything that is checked without running a service. Every check runs; any failure fails the whole.
set -uo pipefail
cd "$(dirname "$0")/.."

bin=.venv/bin
bases=(proto libs/* services/* cli)
packages=(libs/*/rorqual_*/__init__.py services/*/rorqual_*/__init__.py cli/rorqual_cli/__init__.py training/__init__.py)
packages=("${packages[@]%/__init__.py}") # folders, but not their *.egg-info
failed=()

check() {
    local name=$1
    shift
    echo "lint: $name"
    "$@" || failed+=("$name")
}

mypy_all() {
    MYPYPATH=$(IFS=:; echo "${bases[*]}") "$bin/mypy" "${packages[@]}"
}

proto_drift() {
    local out
    out=$(mktemp -d)
    scripts/proto.sh "$out" &&
        diff -r -x '*.proto' -x '__pycache__' -x '__init__.py' "$out/rorqual_proto/v1" proto/rorqual_proto/v1 ||
        { rm -rf "$out"; echo "generated stubs differ: run make proto"; return 1; }
    rm -rf "$out"
}

check "ruff" "$bin/ruff" check .
check "ruff format" "$bin/ruff" format --check .
check "mypy" mypy_all
check "import rules" "$bin/lint-imports"
check "generated stubs" proto_drift

if ((${#failed[@]})); then
    printf 'lint: failed: %s\n' "${failed[*]}" >&2
    exit 1
fi
echo "lint: all good"
