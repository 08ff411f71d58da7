# Every target runs on a clean clone: what it needs of `init` it asks for itself.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
# The system's own comes first: distributions compile it for speed, as pyenv does not, and imports take a sixth less CPU.
PYTHONS := /usr/bin/python3.11 python3.11 python3
PYTHON := $(or $(shell for it in $(PYTHONS); do $$it -c "import ensurepip" && echo $$it && break; done 2>/dev/null),python3)
# The uv of requirements.lock, whatever is on the PATH; pip installs it by its hashes, with what `lock` needs too.
UV := $(BIN)/uv
PINNED_UV = awk '/^(packaging|uv)==/ { found = 1 } found { print } !/\\$$/ { found = 0 }' requirements.lock
SOURCES := operators $(if $(wildcard plugins/*/*.py),plugins) demo
FORMATTED := $(SOURCES) $(wildcard tests dags examples scripts benchmarks docker noxfile.py)
# Apart from all else, for its own test: Levanter imports it wherever it is found, which takes as long as a tiny training.
LM_EVAL := tests/recipes/metrics/lm_eval
ARGS ?=
# One more than a small machine has cores: a third of the time, a test waits for what it has started.
TEST_PROCESSES ?= 3
# tests/support/scheduling.py says which tests stay in one process, and in which order.
IN_PARALLEL = -n $(TEST_PROCESSES) --no-loadscope-reorder --budget=check
# Hundreds of commands are started, and compile what they import anew where the environment forbids to keep it.
COMPILED = PYTHONDONTWRITEBYTECODE=

WEB := plugins/tradewind_ui/web

include docker/images.mk

.PHONY: help init demo stop test test-fast test-matrix snapshots coverage test-long test-adopt chaos mutants evaluation-envs check ui check-ui autoformat bench bench-jobs bench-plans bench-pods bench-fleet bench-train bench-data bench-eval bench-ui screenshots marin-oracle marin-parse metrics lock

help: ## show this help
	@grep -hE '^[a-z_-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z_-]+):.*## (.*)/  \1\t\2/' | expand -t 32

init: $(STAMP) ## create .venv with everything in requirements.lock (again only when that or pyproject.toml changed)

$(STAMP): requirements.lock pyproject.toml $(LM_EVAL).lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed.")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(UV) || { $(PINNED_UV) > $(VENV)/uv.txt && \
	    $(BIN)/python -m pip install --quiet --no-deps --require-hashes -r $(VENV)/uv.txt; }
	# Compiled now, because Airflow starts each of its processes in half the time then.
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps -e .
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --require-hashes --compile-bytecode \
	    --target $(VENV)/lm-eval -r $(LM_EVAL).lock
	touch $@

demo: init ## run the demo pipeline on a local Ray and a local Airflow (other DAG: ARGS="--dag hello_world")
	$(BIN)/python -m demo up $(ARGS)

stop: init ## stop every process of the demo
	$(BIN)/python -m demo down $(ARGS)

test: init ## run the tests, in three processes (other: TEST_PROCESSES=2), within tests/budget.toml
	$(COMPILED) $(BIN)/python -m pytest -m "not long" $(IN_PARALLEL) $(ARGS)

test-long: init ## run the end-to-end tests, and property tests with many examples (of some folders: ARGS="tests/recipes tests/cli")
	$(COMPILED) TRADEWIND_HYPOTHESIS=nightly $(BIN)/python -m pytest -m "long or hypothesis" $(ARGS)

test-adopt: init ## use the wheel in an Airflow and a Ray that pip made, and print what a user sees (one: ARGS="-k sqlite")
	$(COMPILED) $(BIN)/python -m pytest -s -m long tests/adopt $(ARGS)

test-fast: init ## run the quick tests only, in three processes
	$(COMPILED) $(BIN)/python -m pytest -m "not ray and not airflow and not slow" $(IN_PARALLEL) $(ARGS)

test-matrix: init ## run the quick tests on every Python from 3.11 on that is here (one: ARGS="-k wheel", NOX="-p 3.12")
	$(BIN)/python -m nox --session fast $(NOX) -- $(IN_PARALLEL) $(ARGS)

snapshots: init ## renew the expected outputs of the data recipes; read their difference before you commit it
	TRADEWIND_SNAPSHOTS=renew $(BIN)/python -m pytest -p no:xdist -k snapshot tests/recipes/data $(ARGS)

coverage: init ## run the tests and print which lines ran, in subprocesses too (fewer: ARGS="tests/steps")
	$(BIN)/python -m pytest -m "not long" --cov --cov-report=term:skip-covered $(IN_PARALLEL) $(ARGS)

chaos: init ## train under the faults of 20 seeds, and nights of DAGs of 5 (others: CHAOS_SEEDS="20 21" NIGHT_SEEDS="7")
	CHAOS_SEEDS="$${CHAOS_SEEDS:-$$(seq -s ' ' 0 19)}" NIGHT_SEEDS="$${NIGHT_SEEDS:-$$(seq -s ' ' 0 4)}" \
	    NIGHT_TROUBLES="$${NIGHT_TROUBLES:-10}" NIGHT_DATABASES="$${NIGHT_DATABASES:-postgres sqlite}" \
	    $(BIN)/python -m pytest tests/chaos $(ARGS)

mutants: init ## break each guard on purpose and see a test fail (some of them: ARGS="leases")
	$(BIN)/python -m scripts.mutants $(ARGS)

evaluation-envs: init ## make the environments of HELM and AlpacaEval from their locks (900 MB), for the long tests of these
	$(BIN)/python -m tradewind.evaluation.environments helm alpaca_eval

check: init ## lint, format check, types, plain words, and whether the locks fit pyproject.toml
	$(BIN)/ruff check $(FORMATTED)
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/python scripts/check_words.py
	$(BIN)/python scripts/check_lock.py

ui: init $(WEB)/node_modules/.stamp ## build the pages of Airflow's UI from their sources, with the schema of their API (needs node)
	$(BIN)/python -m scripts.ui_schema > $(WEB)/openapi.json
	cd $(WEB) && npm run --silent schema && npm run --silent build
	$(BIN)/python -m scripts.ui_digest > plugins/tradewind_ui/static/sources.sha256

check-ui: $(WEB)/node_modules/.stamp ## types, lint and component tests of the pages (needs node)
	cd $(WEB) && npm run --silent typecheck && npm run --silent lint && npm run --silent test

$(WEB)/node_modules/.stamp: $(WEB)/package-lock.json $(WEB)/package.json
	@command -v npm > /dev/null || { echo "The pages of the UI need node 20.19 or newer with npm, and there is none." >&2; exit 1; }
	cd $(WEB) && npm ci --silent --no-audit --no-fund
	touch $@

autoformat: init ## fix what ruff can fix
	$(BIN)/ruff check --fix $(FORMATTED)
	$(BIN)/ruff format $(FORMATTED)

bench: init ## parse, resolve and reuse experiments beside peers (some, fewer minutes: ARGS="--quick reuse")
	$(BIN)/python -m benchmarks $(ARGS)

bench-jobs: init ## measure our Ray operator beside its peers, each in its own environment (fewer minutes: ARGS="--quick")
	scripts/install_bench_peers.sh $(UV) $(BIN)/python
	$(BIN)/python -m benchmarks.jobs $(ARGS)

bench-plans: init ## measure plans in which all is finished, beside what must be read and bare skipping (fewer minutes: ARGS="--quick")
	$(BIN)/python -m benchmarks.plans $(ARGS)

bench-pods: init ## measure what a lost slice costs, beside Ray Train's JaxTrainer (fewer minutes: ARGS="--quick")
	$(BIN)/python -m benchmarks.pods $(ARGS)

bench-fleet: init ## measure a repair of 1,024 slices in 8 zones, a restart with 50 jobs, files of 100 clusters (fewer: ARGS="--quick")
	$(BIN)/python -m benchmarks.fleet $(ARGS)

bench-train: init ## measure downloads, tokenizing and training beside the hub's client, Ray Data and Levanter's own (fewer: ARGS="--quick")
	$(BIN)/python -m benchmarks.train $(ARGS)

bench-data: init ## measure pipelines over files beside a loop of processes, Zephyr, Ray Data and datatrove (fewer: ARGS="--quick")
	$(BIN)/python -m benchmarks.data $(ARGS)

bench-eval: init ## measure requests through a pool beside its engine alone, and recovery from a killed worker (fewer: ARGS="--quick")
	$(BIN)/python -m benchmarks.evaluation $(ARGS)

bench-ui: init ## measure the pages of Airflow's UI beside Airflow's own (fewer: ARGS="--quick plan")
	scripts/install_chromium.sh
	$(BIN)/python -m benchmarks.ui $(ARGS)

screenshots: init ## write docs/images from sample runs, and from the demo if it runs
	scripts/install_chromium.sh
	$(BIN)/python -m scripts.screenshot $(ARGS)

marin-oracle: init ## compare a checkout of Marin with what its executor made (ARGS="--checkout DIR --oracle oracle.json.gz")
	$(BIN)/python -m scripts.marin.oracle $(ARGS)

marin-parse: init ## measure how long the DAGs of a checkout of Marin take to parse (ARGS="--checkout DIR")
	$(BIN)/python -m scripts.marin.parse_time $(ARGS)

metrics: init ## print code metrics: sizes, import cycles, duplicate names, function lengths (ARGS="--timed --at HEAD~9")
	$(BIN)/python -m scripts.metrics $(ARGS)

lock: ## resolve pyproject.toml into requirements.lock, locks and docker, and the benchmarks' peers into benchmarks/peers
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(UV) || { $(PINNED_UV) > $(VENV)/uv.txt && \
	    $(BIN)/python -m pip install --quiet --no-deps --require-hashes -r $(VENV)/uv.txt; }
	scripts/lock.sh $(UV)
	$(BIN)/python -m scripts.lock_images $(UV)
	scripts/lock_bench_peers.sh $(UV)
