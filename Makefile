# One word a target. `make run` and `make test` set up all they need; the second time is quick.
.PHONY: run test check setup tools browser bench soak clean lock help
.DEFAULT_GOAL := help
SHELL := bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

help:
	@echo "make run     start a local cluster with Fairgate in it and play the demo (about 2 minutes;"
	@echo "             the first time about 10 more, to build Kubernetes from source)"
	@echo "make test    run every test, those on a real API server included"
	@echo "make check   ruff, mypy, import contracts"
	@echo "make bench   print the measures of loadtest/"
	@echo "make soak    play random faults on a real cluster: MINUTES=30, SEED=... to play one again;"
	@echo "             WINDOW=1: a window of a real log, next to the simulator (SPEED=200, GPUS=320)"
	@echo "make setup   only set up: afterwards $(BIN)/fairgate works"
	@echo "make tools   only build what the local cluster needs, into the cache"
	@echo "make browser install chromium (Debian, as root) for the tests of the page; make test does it"
	@echo "make clean   remove the virtual environment and caches of this folder"

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Fairgate needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version 2>&1`. Use make PYTHON=python3.12, say." >&2; exit 2; }
	@echo "Setting up the virtual environment $(VENV) (usually a minute; once) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing; on Debian: apt-get install python3-venv." >&2; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)
	@echo "Set up: $(BIN)/fairgate works."

tools: setup
	@$(BIN)/fairgate dev tools

run: setup
	@$(BIN)/fairgate dev demo --stay

# Without Go the tests that need a cluster are skipped, loudly; with REQUIRE_CLUSTER=1 they fail.
test: setup browser
	@$(BIN)/fairgate dev tools || [ -z "$(REQUIRE_CLUSTER)" ]
	@$(BIN)/python -m pytest -n 2 --no-loadscope-reorder

# Debian's package: Playwright's own download would come from a host of its own. Without a browser
# the tests of the page are skipped; with REQUIRE_CLUSTER=1 they fail.
browser:
	@command -v chromium >/dev/null || { \
	  echo "Installing chromium for the tests of the page (once) ..." && [ "$$(id -u)" = 0 ] && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	  apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || { \
	  echo "There is no chromium; on Debian, as root: apt-get install chromium." >&2; \
	  [ -z "$(REQUIRE_CLUSTER)" ]; }

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	@$(BIN)/fairgate dev tools
	@$(BIN)/python -m loadtest

soak: setup
	@$(BIN)/fairgate dev tools
	@$(BIN)/python -m $(if $(WINDOW),tests.faults.window --speed $(or $(SPEED),200) --gpus $(or $(GPUS),320) \
	  $(if $(MINUTES),--minutes $(MINUTES)),tests.faults.soak --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED)))

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock:
	$(BIN)/pip-compile --quiet --extra dev --extra plot --generate-hashes --strip-extras --allow-unsafe \
	  --no-emit-index-url --no-emit-find-links --output-file requirements.lock pyproject.toml
