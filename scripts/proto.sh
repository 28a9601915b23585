#!/usr/bin/env bash
# Generates the protobuf stubs of proto/rorqual_proto/v1 below the folder $1.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$1
mkdir -p "$out"
files=(proto/rorqual_proto/v1/*.proto)
protoc=(.venv/bin/python -m grpc_tools.protoc -Iproto)
"${protoc[@]}" --python_out="$out" --pyi_out="$out" "${files[@]}"
"${protoc[@]}" --grpc_python_out="$out" proto/rorqual_proto/v1/tensor.proto
