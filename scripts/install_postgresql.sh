#!/usr/bin/env bash
# Install Debian's PostgreSQL, for the tests that run Airflow on it, unless there is one already.
set -euo pipefail

if ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "PostgreSQL is missing. Install it as root: apt-get install postgresql" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# No cluster of its own: each test makes one, and stops it.
mkdir -p /etc/postgresql-common
echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf
apt-get update -qq
apt-get install -y -qq --no-install-recommends postgresql > /dev/null
