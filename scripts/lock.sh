#!/usr/bin/env bash
# Resolve pyproject.toml, with hashes, for each Python of its classifiers and each that has a lock already: into
# requirements.lock for the oldest, into locks/VERSION.lock for the others. Those begin with the pins of
# requirements.lock, to differ only where they must. What lm-eval needs besides has a lock of its own, and so do
# the environments of HELM and AlpacaEval.
# Usage: scripts/lock.sh UV
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1

lock() { # VERSION FILE
    "$uv" pip compile --quiet pyproject.toml --extra all --group test --group lint \
        --prerelease=if-necessary-or-explicit --python-version "$1" \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links --generate-hashes -o "$2"
}

mkdir -p locks
mapfile -t versions < <({
    sed -nE 's/^ *"Programming Language :: Python :: (3\.[0-9]+)",$/\1/p' pyproject.toml
    find locks -name '*.lock' -exec basename {} .lock ';'
} | sort -Vu)
lock "${versions[0]}" requirements.lock
for version in "${versions[@]:1}"; do
    cp requirements.lock "locks/$version.lock"
    lock "$version" "locks/$version.lock"
done
"$uv" pip compile --quiet tests/recipes/metrics/lm_eval.in --no-deps --python-version "${versions[0]}" --no-header \
    --no-annotate --no-emit-index-url --no-emit-find-links --generate-hashes -o tests/recipes/metrics/lm_eval.lock
harnesses=operators/tradewind/evaluation/locks
for name in helm alpaca_eval; do
    "$uv" pip compile --quiet "$harnesses/$name.in" --override "$harnesses/overrides.txt" \
        --python-version "${versions[0]}" --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        --generate-hashes -o "$harnesses/$name.lock"
done
