#!/usr/bin/env bash
# In an image: install exactly what the lock pins into the `python` of the base.
# Usage: install_python.sh LOCK
set -euo pipefail
lock=$1

if [ -e /run/secrets/pip_conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip_conf; fi
if [ -e /run/secrets/ca_certificates ]; then export PIP_CERT=/run/secrets/ca_certificates; fi
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

version_of() { # PACKAGE: what the base has of it, if anything
    python -c 'import sys; from importlib.metadata import distributions as all
print(next((d.version for d in all() if d.metadata["Name"] == sys.argv[1]), ""))' "$1"
}

for package in ray apache-airflow; do
    there=$(version_of "$package")
    wanted=$(sed -nE "s/^$package==([^ ;]+).*/\1/p" "$lock")
    if [ -n "$there" ] && [ "$there" != "$wanted" ]; then
        echo "The base has $package $there, and the lock ${wanted:-none}: take a base with that version, or lock anew." >&2
        exit 1
    fi
done
python -m pip install --quiet --no-deps --require-hashes -r "$lock"
# Of what the base brings besides, some may not fit what the lock has.
python -m pip check || echo "Look at these: they are not of the lock alone." >&2
