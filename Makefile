# Everything a newcomer, a developer or CI runs. `make help` lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_FLAGS ?=
SOAK_FLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help bench soak test lint types layers check format lock clean

help: ## List the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or later is needed; name one with make PYTHON=python3.12"; exit 1; }
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked dependencies into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

bench: $(STAMP) ## Measure the built-in mock server: a short streaming chat benchmark, live
	@$(BIN)/aiperf-svc bench $(BENCH_FLAGS)

soak: $(STAMP) ## Half an hour of load: memory flat, lag flat, accounts exact (SOAK_FLAGS="--duration 3m")
	@$(BIN)/python -m benchmarks.soak $(SOAK_FLAGS)

test: $(STAMP) ## Run all tests
	$(BIN)/python -m pytest

lint: $(STAMP) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Check types
	$(BIN)/mypy

layers: $(STAMP) ## Check that what decides does no I/O, and who imports whom
	$(BIN)/lint-imports

check: lint types layers ## All static checks

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## Renew the two lock files from pyproject.toml (needs uv)
	uv pip compile --python-version 3.11 --universal --generate-hashes --no-header \
	  --extra stack --extra s3 --extra dev pyproject.toml -o requirements.lock
	uv pip compile --python-version 3.11 --universal --generate-hashes --no-header \
	  -c requirements.lock --extra s3 pyproject.toml -o images/requirements.lock

clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
