# One entry point for everything. `make help` lists the targets; each one sets up what it needs.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run test test-oldest check fmt bench fuzz proto clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "Installing flussbett and its development tools into $(VENV) ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: $(STAMP) ## Create the virtual environment and install everything

run: $(STAMP) ## Show the formats and the protocol at work
	@$(PY) examples/formats_at_work.py

test: $(STAMP) ## Run the default tests (a few minutes)
	@$(PY) -m pytest

test-oldest: ## Run the tests with the oldest supported versions of the libraries
	@test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-oldest.txt \
		--editable . hypothesis pandas pytest pytest-timeout
	@.venv-oldest/bin/python -m pytest --ignore=tests/unit/protocol/test_generated.py

check: $(STAMP) ## Lint, types, and the rule that imports go downwards
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports

fmt: $(STAMP) ## Format the code
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

bench: $(STAMP) ## Measure the hot paths and print a table
	@$(PY) -m benchmarks.micro

fuzz: $(STAMP) ## Feed 10 million damaged inputs to every decoder (COUNT=n for fewer)
	@$(PY) -m tests.fuzz --count $(or $(COUNT),10000000)

proto: $(STAMP) ## Regenerate the protobuf module from fluss.proto
	@$(PY) tools/generate_messages.py

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .venv-oldest build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
