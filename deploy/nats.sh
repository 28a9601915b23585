#!/bin/sh
# nats-server of compose.yaml. A stream that met a full disk is written no more until the server
# starts anew, however much room there is later. So it is ended then; compose starts it.
nats-server "$@" &
server=$!
trap 'kill -TERM "$server"' TERM INT

is_broken() {
    printf 'GET /healthz HTTP/1.0\r\n\r\n' | nc -w 2 127.0.0.1 8222 | grep -q -e 'no space left' -e 'quota exceeded'
}

has_room() {
    [ "$(df -Pk "${STORE:-/data}" | awk 'NR == 2 { print $4 }')" -ge 32768 ]
}

while kill -0 "$server" 2>/dev/null; do
    sleep 1 &
    wait "$!"
    if is_broken && has_room; then
        echo "nats-server had no room, and takes nothing more until it starts anew" >&2
        kill -KILL "$server"
    fi
done
wait "$server"
