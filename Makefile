PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup demo test test-ray faults quick check docs format bench bench-lab evidence paper paper-cifar browser clean

help:  ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/lab: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[lab]'
	@touch $@

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[dev]'
	@touch $@ .venv/lab

setup: .venv/ready  ## make .venv with all that the tests and checks need

demo: .venv/lab  ## compare the paper's seven methods and ERM stopped early on digits, and write a report
	$(BIN)/aesam compare

test: .venv/ready browser  ## run all tests
	$(BIN)/pytest -n 2

test-ray: .venv/ready  ## run the tests of the Ray engine and Ray Train, which need 240 MB more
	$(INSTALL) -e '.[dev,ray]'
	$(BIN)/pytest cluster_tests

faults: .venv/ready  ## try every fault, of which the tests try a part; writes results/faults.json
	AESAM_FAULTS=all $(BIN)/pytest -n 2 tests/faults
	$(BIN)/python benchmarks/pages.py

# Importing these takes longer than their tests.
FRAMEWORKS := tests/integrations src/aesam/integrations
quick: .venv/ready  ## run the tests worth running every minute
	$(BIN)/pytest -n 2 -m "not slow" $(addprefix --ignore ,$(FRAMEWORKS))

check: .venv/ready docs  ## lint, formatting, types, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# NO_MKDOCS_2_WARNING: mkdocs-material advertises its successor; why it is not yet that is in mkdocs.yml.
docs: .venv/ready  ## build the documentation into site/; a broken link or an unexplained name is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: .venv/ready  ## format the code and mend what lint can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready  ## time the bookkeeping of a step and of recording; writes results/*_overhead.json
	$(BIN)/python benchmarks/step_overhead.py
	$(BIN)/python benchmarks/replay_overhead.py

bench-lab: .venv/ready  ## time the lab against a bare loop; writes results/lab_overhead.json
	$(BIN)/python benchmarks/lab_overhead.py

SMALL := table-noise fig-noise-curves table-looksam-k table-imagenet fig-lambda fig-variance \
         fig-squared-norm fig-convergence fig-normality theorem cost
paper: .venv/lab  ## make every small table and figure of the paper; an hour, goes on where it stopped
	$(BIN)/aesam reproduce table-cifar --tune --controls --publish results
	for entry in $(SMALL); do $(BIN)/aesam reproduce $$entry --publish results || exit 1; done

paper-cifar: .venv/lab  ## noise table, its curves and the cost on CIFAR-10 in data/; many hours, goes on
	$(BIN)/aesam reproduce table-noise --data cifar10 --noise 0.6 0.4 \
	  --publish results --publish-runs results/runs
	$(BIN)/aesam reproduce fig-noise-curves --data cifar10 --noise 0.6 0.4 --publish results
	$(BIN)/aesam reproduce cost --data cifar10 --publish results

# Needs CIFAR-10 in data/ and Debian's bible-kjv-text; both are looked for before anything is trained.
# Times come last, when nothing else runs.
evidence: .venv/lab  ## score against cost on all benches, triggers, pages; a day, goes on where it stopped
	$(BIN)/aesam frontier
	$(BIN)/aesam triggers
	$(BIN)/python benchmarks/cifar_regimes.py
	$(BIN)/aesam frontier --no-train --time
	$(BIN)/python benchmarks/pages.py

# The test that looks at the report needs a browser: installed where that is possible and absent.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	     && { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } >/dev/null 2>&1; } \
	|| echo "No Chromium, so the page of the report will not be looked at: apt-get install chromium"

clean:  ## remove everything that make made
	rm -rf .venv .ruff_cache .hypothesis site
