#!/usr/bin/env bash
# Set up a laptop to start and reach clusters: gcloud with a login, the SSH key of the fleet's nodes, and Ray's token.
# Existing files are not changed, so it can be run again.
# Usage: scripts/dev_setup.sh PYTHON FLEET
set -euo pipefail
python=$1 fleet=$2

if ! command -v gcloud > /dev/null; then
    echo "gcloud is not installed: see https://cloud.google.com/sdk/docs/install, then run this again." >&2
    exit 1
fi
gcloud auth print-access-token > /dev/null || gcloud auth login
gcloud auth application-default print-access-token > /dev/null 2>&1 || gcloud auth application-default login

{ read -r project; read -r key; } < <("$python" -c 'import sys
from pathlib import Path
from tradewind.fleet.fleet_file import load_fleet
cluster = load_fleet(Path(sys.argv[1])).cluster()
print(cluster.project, Path(cluster.ssh_private_key).expanduser(), sep="\n")' "$fleet")
if [ -e "$key" ]; then
    echo "$key is there."
else
    umask 077
    mkdir -p "$(dirname "$key")"
    gcloud secrets versions access latest --project="$project" --secret=RAY_CLUSTER_PRIVATE_KEY --out-file="$key.new"
    mv "$key.new" "$key"
    echo "Fetched $key."
fi
token=~/.ray/auth_token
if [ -e "$token" ]; then
    echo "$token is there."
elif ! "$python" -m tradewind.cli.main cluster auth-env --home --fleet "$fleet" > /dev/null; then
    echo "There is no token yet: 'make init_ray_auth_token_secret' creates it, then 'make get_ray_auth_token'." >&2
fi
