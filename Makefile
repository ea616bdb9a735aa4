# gnnlab. `make help` lists the targets; each sets up .venv first, and only when its inputs changed.
# The first Python from 3.11 to 3.13 that runs and has venv; make PYTHON=/path/to/python takes another.
FITS := import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -c '$(FITS)' 2>/dev/null && echo $$p && break; done)
MISSING := no Python 3.11, 3.12 or 3.13 with venv here; get one by `uv python install 3.12` (then: make PYTHON="$$(uv python find 3.12)"), \
  `conda create -n py312 python=3.12`, or on Ubuntu `apt install python3.12-venv` (other versions: the deadsnakes PPA)
PARAMS ?= quick
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup run report test slow lint audit format lab clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## install everything into .venv

$(READY): pyproject.toml constraints.txt
	@test -n '$(PYTHON)' || { printf '%s\n' '$(MISSING)' >&2; exit 1; }
	@$(PYTHON) -c '$(FITS)' || { echo 'gnnlab needs Python 3.11, 3.12 or 3.13 with venv; $(PYTHON) is none: '"$$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	@test ! -L .venv || { echo '.venv is a link, and setting up would empty what it points to: remove the link, or run make there' >&2; exit 1; }
	@echo "setting up .venv (a minute or two, 2 GB) ..."
	@env -u PYTHONPATH $(PYTHON) -m venv --clear .venv
	@env -u PYTHONPATH PIP_USER=0 $(BIN)/pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[test]'
	@test ! -e .git || $(BIN)/pre-commit install >/dev/null || echo "no commit hook was set up: make lint says what it would have mended"
	@touch $(READY)

run: $(READY)  ## run every notebook with PARAMS (quick) and render the site
	$(BIN)/gnnlab run --params $(PARAMS)

report: $(READY)  ## render the site again from the results
	$(BIN)/gnnlab report --params $(PARAMS)

test: $(READY)  ## run pytest, nbval included
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadscope --no-loadscope-reorder --max-worker-restart 0 -m "not slow"

slow: $(READY)  ## run the tests that take minutes
	$(BIN)/pytest -q -m slow

lint: $(READY)  ## check code and notebooks: ruff, and no stored outputs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/nbstripout --keep-count --verify notebooks/*.ipynb

audit: $(READY)  ## ask PyPI for known vulnerabilities of what is pinned
	$(BIN)/python .ci/audit.py

format: $(READY)  ## mend what lint complains of
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/nbstripout --keep-count notebooks/*.ipynb

lab: $(READY)  ## open JupyterLab in notebooks/
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --notebook-dir=. notebooks/start.ipynb

clean:  ## remove .venv and caches; outputs stay
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis *.egg-info
