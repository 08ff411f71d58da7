#!/usr/bin/env bash
# Put each peer of `make bench-jobs` into an environment of its own under .bench, with the Airflow and the Ray of
# requirements.lock if the peer allows them. A peer that cannot be installed (no network, no fitting versions) leaves
# its reason in .bench/NAME.failed; the benchmark prints that and measures the others.
# Usage: scripts/install_bench_peers.sh UV PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1 python=$2

locked() { grep -E "^$1==" requirements.lock | cut -d= -f3 | tr -d ' \\'; }
airflow="apache-airflow==$(locked apache-airflow) apache-airflow-task-sdk==$(locked apache-airflow-task-sdk)"
ray="ray[default]==$(locked ray)"

install() { # NAME REQUIREMENT...
    local name=$1 home=.bench/$1
    shift
    if [[ -x $home/bin/python && $(cat "$home/wanted" 2>/dev/null) == "$*" ]]; then return; fi
    rm -rf "$home" "$home.failed"
    mkdir -p .bench
    echo "Installing $* ..."
    "$python" -m venv --without-pip "$home"
    if "$uv" pip install --quiet --python "$home/bin/python" --compile-bytecode "$@" 2> "$home.log"; then
        echo "$*" > "$home/wanted"
    else
        rm -rf "$home"
        { echo -n "$* could not be installed: "; tr -s ' \n' ' ' < "$home.log" | cut -c1-500; } > "$home.failed"
    fi
}

# shellcheck disable=SC2086
install google $airflow "$ray" apache-airflow-providers-google==22.1.0
# shellcheck disable=SC2086
install astro $airflow "$ray" astro-provider-ray==0.4.0
