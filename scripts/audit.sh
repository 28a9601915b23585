#!/usr/bin/env bash
# Known faults of the pinned dependencies, from the public advisory service. The auditor lives in an
# environment of its own: what it needs is none of ours. Without the service it says that nothing was
# checked; with AUDIT_REQUIRED=1 that is a failure.
set -uo pipefail
cd "$(dirname "$0")/.."

version=2.10.1
home=.rorqual/audit
unreachable='ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|Max retries|NameResolution|SSLError'

not_checked() {
    echo "audit: NOT CHECKED: $1"
    exit "${AUDIT_REQUIRED:-0}"
}

if [[ ! -x $home/bin/pip-audit ]]; then
    python3 -m venv "$home" || exit 1
    if ! said=$("$home/bin/pip" install -q "pip-audit==$version" 2>&1); then
        grep -qE "$unreachable" <<<"$said" && not_checked "the package index can't be reached"
        printf '%s\n' "$said"
        exit 1
    fi
fi
said=$("$home/bin/pip-audit" --requirement constraints.txt --no-deps --disable-pip \
    --progress-spinner off --timeout 20 2>&1)
code=$?
if ((code)) && grep -qE "$unreachable" <<<"$said" && ! grep -q 'known vulnerabilit' <<<"$said"; then
    not_checked "the advisory service can't be reached"
fi
num_pins=$(grep -c == constraints.txt)
num_skipped=$(grep -c 'could not be audited' <<<"$said") # a mirror of the index may have no advisories
((num_skipped < num_pins)) || not_checked "this index has advisories of none of the $num_pins packages"
printf '%s\n' "$said"
echo "audit: $((num_pins - num_skipped)) of $num_pins packages checked"
exit "$code"
