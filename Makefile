PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup test quick check format bench clean

help:  ## show this
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[dev]'
	@touch $@

.venv/bench: .venv/ready
	$(INSTALL) -e '.[bench]'
	@touch $@

setup: .venv/ready  ## make .venv with all that the tests and checks need

test: .venv/ready  ## run all tests
	$(BIN)/pytest -n 2

quick: .venv/ready  ## run the tests worth running every minute
	$(BIN)/pytest -n 2 -m "not slow"

check: .venv/ready  ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/ready  ## format the code and mend what lint can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/bench  ## time the bookkeeping of a step; writes results/step_overhead.json
	$(BIN)/python benchmarks/step_overhead.py

clean:  ## remove everything that make made
	rm -rf .venv .ruff_cache .hypothesis
