#!/bin/sh
# Regenerates the stubs beside faultd.proto; run by `make protos`, checked by `make lint`.
set -eu
cd "$(dirname "$0")/.."
"${PYTHON:-.venv/bin/python}" -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. protos/faultd.proto
