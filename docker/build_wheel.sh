#!/usr/bin/env bash
# In an image's first stage: build Tradewind's wheel, with the pinned builder, out of the checkout beside this script.
# Usage: build_wheel.sh WHEELS
set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
wheels=$1

if [ -e /run/secrets/pip_conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip_conf; fi
if [ -e /run/secrets/ca_certificates ]; then export PIP_CERT=/run/secrets/ca_certificates; fi
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
python -m venv /tmp/builder
/tmp/builder/bin/python -m pip install --quiet --no-deps --require-hashes -r "$checkout/docker/requirements-build.lock"
/tmp/builder/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$wheels" "$checkout"
