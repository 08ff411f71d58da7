#!/usr/bin/env bash
# Resolve each peer of `make bench-jobs` into benchmarks/peers/NAME.lock, with hashes, with the Airflow and the Ray of
# requirements.lock.
# Usage: scripts/lock_bench_peers.sh UV
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1

locked() { grep -E "^$1==" requirements.lock | cut -d= -f3 | cut -d' ' -f1; }

lock() { # NAME REQUIREMENT...
    local name=$1
    shift
    mkdir -p benchmarks/peers
    printf '%s\n' "apache-airflow==$(locked apache-airflow)" "apache-airflow-task-sdk==$(locked apache-airflow-task-sdk)" \
        "ray[default]==$(locked ray)" "$@" |
        "$uv" pip compile --quiet - --python-version 3.11 --no-header --no-annotate --no-emit-index-url \
            --no-emit-find-links --generate-hashes -o "benchmarks/peers/$name.lock"
}

lock google apache-airflow-providers-google==22.1.0
lock astro astro-provider-ray==0.4.0
