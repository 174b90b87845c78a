# make demo    the main job: choose, answer and compare on the bundled questions
# make test    everything the tests need, then the tests
# make check   lint, types and tests, as continuous integration runs them
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: demo test check lint types conformance clean

demo: $(VENV)/.demo
	$(BIN)/mio-rag demo --out demo-report

test: $(VENV)/.dev
	$(BIN)/python -m pytest

check: lint types test

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

conformance: $(VENV)/.dev
	$(BIN)/python -m benchmarks conformance

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[demo]"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist demo-report *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
