# `make demo` and `make test` work from a fresh clone and skip what is already installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4

.PHONY: demo test test-slow lint format architecture clean

demo: $(VENV)/.samples-installed ## train a Transformer-XL on Wikipedia
	$(BIN)/python train.py

test: lint $(VENV)/.peers-installed ## lint and all but the slow tests
	$(PYTEST) -m 'not slow'

test-slow: $(VENV)/.dev-installed ## runs of several processes, and runs that are killed and resumed
	$(PYTEST) -m slow

lint: $(VENV)/.dev-installed ## style, format, types, and which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

format: $(VENV)/.dev-installed ## fix what can be fixed automatically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

architecture: $(VENV)/.dev-installed ## draw docs/architecture.svg from the code
	$(BIN)/python docs/draw_architecture.py

clean: ## remove the virtual environment and the caches of the tools
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .mypy_cache .hypothesis

$(VENV)/.samples-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[samples]'
	@touch $@

$(VENV)/.dev-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[samples,corpora,dev]'
	@touch $@ $(VENV)/.samples-installed

# The peer of the comparisons, in a folder of its own so that nothing imports it by accident.
$(VENV)/.peers-installed: constraints.txt | $(BIN)/python
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then \
		$(PIP) --target $(VENV)/peers --upgrade 'transformers==4.35.2'; \
	else echo "transformers 4.35.2 needs Python 3.12 or older: the comparison with it is skipped"; fi
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "txl needs Python 3.10 or later, $(PYTHON) is $$($(PYTHON) -V 2>&1); name another: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
