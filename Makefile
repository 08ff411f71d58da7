# Every target runs on a clean clone: what it needs of `init` it asks for itself.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PYTHON := $(shell command -v python3.11 || command -v python3)
# The uv of requirements.lock, whatever is on the PATH; pip installs it by its hashes.
UV := $(BIN)/uv
PINNED_UV = awk '/^uv==/ { found = 1 } found { print } found && !/\\$$/ { exit }' requirements.lock
SOURCES := operators $(if $(wildcard plugins/*/*.py),plugins) demo
FORMATTED := $(SOURCES) $(wildcard tests dags scripts benchmarks)
ARGS ?=
TEST_PROCESSES ?= 2
# A file's tests share what they start, so they stay in one process; in order, since the longest files come early.
IN_PARALLEL = -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

.PHONY: help init demo stop test test-fast chaos mutants check autoformat bench bench-jobs bench-plans bench-pods bench-repair screenshots lock

help: ## show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

init: $(STAMP) ## create .venv with everything in requirements.lock (again only when that or pyproject.toml changed)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed.")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(UV) || { $(PINNED_UV) > $(VENV)/uv.txt && \
	    $(BIN)/python -m pip install --quiet --no-deps --require-hashes -r $(VENV)/uv.txt; }
	# Compiled now, because Airflow starts each of its processes in half the time then.
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps -e .
	touch $@

demo: init ## run the demo pipeline on a local Ray and a local Airflow (other DAG: ARGS="--dag hello_world")
	$(BIN)/python -m demo up $(ARGS)

stop: init ## stop every process of the demo
	$(BIN)/python -m demo down

test: init ## run all tests, in two processes (other: TEST_PROCESSES=4)
	$(BIN)/python -m pytest $(ARGS) $(IN_PARALLEL)

test-fast: init ## run the pure tests only
	$(BIN)/python -m pytest -m "not ray and not airflow and not slow" $(ARGS)

chaos: init ## train under the faults of 20 seeds, and nights of DAGs of 5 (others: CHAOS_SEEDS="20 21" NIGHT_SEEDS="7")
	CHAOS_SEEDS="$${CHAOS_SEEDS:-$$(seq -s ' ' 0 19)}" NIGHT_SEEDS="$${NIGHT_SEEDS:-$$(seq -s ' ' 0 4)}" \
	    NIGHT_TROUBLES="$${NIGHT_TROUBLES:-10}" $(BIN)/python -m pytest tests/chaos $(ARGS)

mutants: init ## break each guard on purpose and see a test fail (some of them: ARGS="records keeper")
	$(BIN)/python -m scripts.mutants $(ARGS)

check: init ## lint, format check, types, and whether requirements.lock fits pyproject.toml
	$(BIN)/ruff check $(FORMATTED)
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/python scripts/check_lock.py

autoformat: init ## fix what ruff can fix
	$(BIN)/ruff check --fix $(FORMATTED)
	$(BIN)/ruff format $(FORMATTED)

bench: init ## measure beside a peer and print ratios
	$(BIN)/python -m benchmarks.run $(ARGS)

bench-jobs: init ## measure our Ray operator beside its peers, each in its own environment (fewer minutes: ARGS="--quick")
	scripts/install_bench_peers.sh $(UV) $(BIN)/python
	$(BIN)/python -m benchmarks.jobs $(ARGS)

bench-plans: init ## measure plans in which all is finished, beside what must be read and bare skipping (fewer minutes: ARGS="--quick")
	$(BIN)/python -m benchmarks.plans $(ARGS)

bench-pods: init ## measure what a lost slice costs, beside Ray Train's JaxTrainer (fewer minutes: ARGS="--quick")
	$(BIN)/python -m benchmarks.pods $(ARGS)

bench-repair: init ## measure a pass of the repair over 1,024 slices: seconds, requests and their bound (24 slices: ARGS="--quick")
	$(BIN)/python -m benchmarks.repair $(ARGS)

screenshots: init ## write docs/images from the running demo
	scripts/install_chromium.sh
	$(BIN)/python -m scripts.screenshot $(ARGS)

lock: ## resolve pyproject.toml into requirements.lock, and the benchmarks' peers into benchmarks/peers
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(UV) || { $(PINNED_UV) > $(VENV)/uv.txt && \
	    $(BIN)/python -m pip install --quiet --no-deps --require-hashes -r $(VENV)/uv.txt; }
	$(UV) pip compile --quiet pyproject.toml --extra dev --prerelease=if-necessary-or-explicit --python-version 3.11 \
	    --no-header --no-annotate --no-emit-index-url --no-emit-find-links --generate-hashes -o requirements.lock
	scripts/lock_bench_peers.sh $(UV)
