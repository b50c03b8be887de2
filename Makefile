# Every target sets up what it needs: a virtual environment in .venv with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TESTS  ?=
# Two workers on two cores: threads of the linear algebra libraries would only wait for each other.
ALONE  := OMP_NUM_THREADS=1

.PHONY: demo test test-all lint bench docs packages clean help

help:           ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "wellorder needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,flower,experiments,dev,docs,frameworks]'
	@touch $@

demo: $(READY)  ## the main job: compare orders on handwritten digits (about a minute), and write a report
	$(BIN)/python -m wellorder compare --task digits --seeds 10

test: $(READY)  ## the fast tests and every doctest (about five minutes on two cores)
	$(ALONE) $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" $(TESTS)

test-all: $(READY)  ## the slow tests: real components, long runs, and planted mistakes, which need not wait for each other
	$(if $(TESTS),,$(ALONE) $(BIN)/python -m pytest -n 2 -m slow -k "mutations" tests)
	$(ALONE) $(BIN)/python -m pytest -n 2 -m slow $(if $(TESTS),$(TESTS),-k "not mutations")

lint: $(READY)  ## style, types, and the import contract
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) ## speed, as ratios inside one run
	$(BIN)/python -m benchmarks

docs: $(READY)  ## the documentation, strict, into site/
	$(BIN)/mkdocs build --strict --quiet

packages:       ## sdist and wheel as people install them: alone, with the lowest versions, with the newest
	.ci/packages

clean:          ## forget the environment and every build product
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
