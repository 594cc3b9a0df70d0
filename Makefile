# Everything a newcomer, a developer or CI runs. `make help` lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
COLLECTED := $(VENV)/.collected
COMMAND := $(BIN)/aiperf-svc
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
BENCH_FLAGS ?=
SOAK_FLAGS ?=
FUZZ_FLAGS ?=
BENCHMARK_FLAGS ?=
LOCK_FLAGS ?=
PACKAGE_TOOLS := $(VENV)/package/bin
STACK_TESTS := $(BIN)/python -m pytest tests/e2e/stack
PARALLEL := --dist worksteal --numprocesses

# What is installed is compiled by its first import. Without this a shell or a CI that sets the variable has each of
# hundreds of processes compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help bench bench-real benchmark benchmark-quick docs soak fuzz sanitize package test test-fast coverage test-gate test-stack lint types layers check format lock clean

help: ## List the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

# What a measurement needs: a quarter of what the tests do, so that the first one is near.
$(RUNTIME): images/requirements.lock scripts/pip.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or later is needed; name one with make PYTHON=python3.12"; exit 1; }
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked dependencies into $(VENV)"
	@$(PIP_INSTALL) --no-compile --require-hashes -r scripts/pip.lock
	@$(PIP_INSTALL) --no-compile --require-hashes -r $<
	@touch $@

# Does without where there is no C compiler, and says so.
$(COMPILED): scripts/compile_steps.py $(wildcard aiperf_svc/*/_*.[ch] aiperf_svc/*/*/_*.[ch]) $(RUNTIME)
	@$(BIN)/python scripts/compile_steps.py
	@touch $@

# The command for what follows the first measurement; `make test` installs the same as an editable package.
$(COMMAND): scripts/link_command.py $(RUNTIME)
	@$(BIN)/python scripts/link_command.py

$(STAMP): $(COMPILED) requirements.lock pyproject.toml
	@echo "installing what tests and stacks need into $(VENV)"
	@$(PIP_INSTALL) --no-compile --require-hashes -r requirements.lock
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

bench: $(COMPILED) $(COMMAND) ## Measure the built-in mock server: a streaming chat benchmark of twelve seconds, live
	@$(BIN)/python -m aiperf_svc bench $(BENCH_FLAGS)

bench-real: $(STAMP) ## Measure a llama.cpp server, then two behind a router; compiles it first
	@$(BIN)/python -m benchmarks.real_server $(BENCH_FLAGS)

benchmark: $(STAMP) ## Everything measured: benchmarks/results/<date>.json and docs/performance.md; over an hour
	@$(BIN)/python -m benchmarks.suite $(BENCHMARK_FLAGS)

benchmark-quick: $(STAMP) ## A short look at speed, truth, the control plane and collecting; some minutes
	@$(BIN)/python -m benchmarks.suite --quick $(BENCHMARK_FLAGS)

soak: $(STAMP) ## Half an hour of load: memory flat, lag flat, accounts exact (SOAK_FLAGS="--duration 3m")
	@$(BIN)/python -m benchmarks.soak $(SOAK_FLAGS)

fuzz: $(STAMP) ## 10,000 legal and broken responses, 1,000 changed configs; ten minutes (FUZZ_FLAGS="--seed 2")
	@$(BIN)/python -m benchmarks.fuzz $(FUZZ_FLAGS)

sanitize: $(STAMP) ## The same responses and the tests of the C steps under AddressSanitizer and UBSan (gcc)
	@$(BIN)/python -m benchmarks.fuzz.sanitized $(FUZZ_FLAGS)

# In a fresh clone each process of pytest would compile all test modules and what they import: one does it for all.
$(COLLECTED): $(STAMP)
	@$(BIN)/python -m pytest --collect-only --quiet --ignore tests/e2e/stack >/dev/null; touch $@

# Tests wait as long as they compute: six processes for two cores. Tests marked `alone` measure the machine and run one
# after the other at the end.
test: $(COLLECTED) ## Run all tests that need no cluster; `make test-stack` adds the life of stacks on Kubernetes
	$(BIN)/python -m pytest $(PARALLEL) 6 -m "not alone" --ignore tests/e2e/stack
	$(BIN)/python -m pytest -m alone tests/e2e --ignore tests/e2e/stack

test-fast: $(COLLECTED) ## Run all tests that need no whole run and no cluster
	$(BIN)/python -m pytest $(PARALLEL) 6 --ignore tests/e2e

coverage: $(STAMP) ## Print the lines that no test runs: a report to read, not a gate; half an hour
	rm -rf .coverage && mkdir .coverage
	-$(BIN)/coverage run -m pytest $(PARALLEL) 6 -m "not alone" --ignore tests/e2e/stack
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

test-gate: $(STAMP) cluster-tools ## Run the cluster tests that CI runs: one scenario of each kind
	tests/cluster/with sh -c '$(STACK_TESTS) $(PARALLEL) 2 -m "gate and not alone" && $(STACK_TESTS) -m "gate and alone"'
	tests/cluster/with --nodes 2 $(STACK_TESTS) -m "gate and two_nodes"

# Two scenarios at a time, and those marked `alone` one after another. Scenarios marked two_nodes run in a cluster of
# their own and are left out unless they are all that is selected.
# The controllers are built first: a build beside the tests would take their CPU.
test-stack: $(STAMP) cluster-tools ## Run all tests on a cluster: over an hour
	test -n "$$E2E_CONTEXT" || ! tests/cluster/possible 2>/dev/null || tests/cluster/build kueue lws metrics-server
	tests/cluster/with sh -c '$(STACK_TESTS) $(PARALLEL) 2 -m "not alone" && $(STACK_TESTS) -m alone'
	tests/cluster/with --nodes 2 $(STACK_TESTS) -m two_nodes

# The first time takes half an hour; on a machine that cannot have a cluster the tests say why.
cluster-tools:
	@test -n "$$E2E_CONTEXT" || ! tests/cluster/possible 2>/dev/null || tests/cluster/build

cluster-up: ## Start a one-node Kubernetes on this machine, as tests/cluster/README.md says
	tests/cluster/build
	tests/cluster/up

cluster-down: ## Stop it, and look that nothing of it is left
	tests/cluster/down

image: ## Build the image of the services, or of ranks (WORKLOAD=iperf), with docker, podman or buildah (BASE=..., IMAGE_REPOSITORY=...)
	images/build

# The tools of this target alone: an environment of their own keeps what they need out of the usual one.
$(PACKAGE_TOOLS)/.installed: scripts/package.lock $(RUNTIME)
	@$(BIN)/python -m venv $(VENV)/package
	@$(PACKAGE_TOOLS)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r $<
	@touch $@

package: $(STAMP) $(PACKAGE_TOOLS)/.installed ## Build wheel and sdist into dist/ and the image's SBOM into build/, and test them in clean environments
	rm -rf dist
	@mkdir -p build
	git rev-parse HEAD >build/commit
	$(BIN)/python -m hatchling build -d dist
	PATH="$(CURDIR)/$(PACKAGE_TOOLS):$$PATH" auditwheel repair -w dist dist/*-linux_*.whl
	rm dist/*-linux_*.whl
	$(PACKAGE_TOOLS)/twine check --strict dist/*
	$(PACKAGE_TOOLS)/abi3audit --strict --summary dist/*.whl
	$(PACKAGE_TOOLS)/cyclonedx-py requirements images/requirements.lock --output-reproducible -o build/image.cdx.json
	PACKAGE_DIST=dist PACKAGE_COMMIT=$$(cat build/commit) PACKAGE_TOOLS=$(PACKAGE_TOOLS) $(BIN)/python -m pytest tests/package

lint: $(STAMP) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Check types
	$(BIN)/mypy

layers: $(STAMP) ## Check that what decides does no I/O, and who imports whom
	$(BIN)/lint-imports

check: $(STAMP) types ## All static checks: types, and those of .pre-commit-config.yaml
	$(BIN)/pre-commit run --all-files

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# pip too: the one that comes with an environment takes twice as long.
lock: ## Lock what pyproject.toml asks for; newest versions of all with LOCK_FLAGS=--upgrade (needs uv)
	uv pip compile $(LOCK_FLAGS) --python-version 3.11 --universal --generate-hashes --no-header \
	  --extra stack --extra s3 --extra media --extra mlflow --extra nvml --extra wandb --extra dev pyproject.toml -o requirements.lock
	uv pip compile $(LOCK_FLAGS) --python-version 3.11 --universal --generate-hashes --no-header \
	  -c requirements.lock --extra s3 --extra media --extra nvml pyproject.toml -o images/requirements.lock
	uv pip compile $(LOCK_FLAGS) --python-version 3.11 --universal --generate-hashes --no-header \
	  -c requirements.lock --extra s3 --extra media --extra nvml --extra stack pyproject.toml -o images/runner/requirements.lock
	uv pip compile $(LOCK_FLAGS) --python-version 3.11 --universal --generate-hashes --no-header scripts/docs.in -o scripts/docs.lock
	uv pip compile $(LOCK_FLAGS) --python-version 3.11 --universal --generate-hashes --no-header scripts/package.in -o scripts/package.lock
	echo pip | uv pip compile $(LOCK_FLAGS) --python-version 3.11 --universal --generate-hashes --no-header - -o scripts/pip.lock

# A virtual environment of its own: nobody else needs the tools.
DOCS := build/docs
$(DOCS)/.installed: scripts/docs.lock
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

docs: $(DOCS)/.installed ## Build the documentation site into build/site; a broken link is an error
	@$(DOCS)/bin/python scripts/site_pages.py build/pages
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --config-file build/pages/mkdocs.yml

clean: ## Remove the environment, caches and what is compiled
	rm -rf aiperf_svc/*/_*.abi3.so aiperf_svc/*/*/_*.abi3.so aiperf_svc/adapters/jobs/_server_launcher build dist $(VENV) .coverage .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
