# Every target sets itself up, once: `train` makes .venv and installs what training needs, the others
# install optional packages and tools as well.

# The first Python that runs and is new enough; `make PYTHON=...` names another.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
BASE := $(VENV)/.installed-base
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install train test test-system test-learning check docs format bench bench-guard compare-setup compare soak clean

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | column -t -s '|'

install: $(STAMP)  ## Make .venv and install everything (the others do this by themselves).

# Its last step makes pip, so an attempt that failed is repeated.
$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "SRL needs Python 3.11 or newer, and found none."; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "Could not make $(VENV). On Debian and Ubuntu: apt install python3-venv"; exit 1; }

# Torch first, by itself: constraints.txt names the build for processors.
$(BASE): pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) torch
	$(PIP) -e .
	@touch $(BASE)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) torch
	$(PIP) -e '.[dev]'
	@touch $(BASE) $(STAMP)

train: $(BASE)  ## Train CartPole with PPO until it is solved.
	$(BIN)/srl train cartpole

PYTEST := $(BIN)/python -m pytest

# Tests of processes wait more than they compute, so more of them run at a time than there are cores.
test: $(STAMP)  ## Run the unit and contract tests, and those of what a run does.
	$(PYTEST) tests/unit tests/contracts -n 2
	$(PYTEST) tests/system -m "runs and not guard" -n 3

test-system: $(STAMP)  ## Run the tests of real processes, faults and several machines.
	$(PYTEST) tests/system -m "not runs and not ends and not alone and not guard" -n 4 \
	  --dist loadgroup

# Training computes, and the ends of runs are mostly waited for.
test-learning: $(STAMP)  ## Run the tests that train until a threshold, of how runs end, and those that need the machine alone.
	$(PYTEST) tests/learning tests/system -m "(learning or ends) and not guard" -n 3
	$(PYTEST) tests/system -m "alone and not guard"

check: $(STAMP) docs  ## Lint, formatting, types and conventions, whether examples and wheel run, and the site.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) tests/conventions tests/examples -n 2

docs: $(STAMP)  ## Build the site of the documents, which is readable offline: build/docs/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(STAMP)  ## Format and fix what can be fixed.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A quick look: make bench BENCH='W1a W2a --seconds 10'
bench: $(STAMP)  ## Measure training speed on every workload; results go to benchmarks/results.
	$(BIN)/python benchmarks/bench_workloads.py --write $(BENCH)

# What they judge depends on what else the machine does, so they are run by hand.
bench-guard: $(STAMP)  ## Run the tests that judge speed, one by one, on a quiet machine.
	$(PYTEST) tests/unit/cli tests/system -m guard

compare-setup:  ## Install the peers of the comparison, each in its own environment.
	$(PYTHON) benchmarks/compare/venvs.py

compare: $(STAMP) compare-setup  ## Compare speed with the peers on a workload: make compare W=W1a
	$(BIN)/python benchmarks/compare/compare.py $(or $(W),W1a)

soak: $(STAMP)  ## Run the long tests, by hand.
	@result=0; for file in benchmarks/soak_*.py; do \
	  echo "== $$file"; $(BIN)/python $$file || result=$$?; done; exit $$result

clean:  ## Remove what was installed and cached; runs are kept.
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
