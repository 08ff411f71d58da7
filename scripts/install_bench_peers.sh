#!/usr/bin/env bash
# Put each peer of `make bench-jobs` into an environment of its own under .bench, as benchmarks/peers/NAME.lock has it. A peer
# that cannot be installed (no network, no fitting versions) leaves its reason in .bench/NAME.failed; the benchmark prints that and measures the others.
# Usage: scripts/install_bench_peers.sh UV PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1 python=$2

install() { # NAME
    local home=.bench/$1 lock=benchmarks/peers/$1.lock
    if [[ -x $home/bin/python ]] && cmp -s "$home/wanted" "$lock"; then return; fi
    rm -rf "$home" "$home.failed"
    mkdir -p .bench
    echo "Installing $lock ..."
    "$python" -m venv --without-pip "$home"
    if "$uv" pip sync --quiet --python "$home/bin/python" --require-hashes --compile-bytecode "$lock" 2> "$home.log"; then
        cp "$lock" "$home/wanted"
    else
        rm -rf "$home"
        { echo -n "$lock could not be installed: "; tr -s ' \n' ' ' < "$home.log" | cut -c1-500; } > "$home.failed"
    fi
}

install google
install astro
