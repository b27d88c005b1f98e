# One word a target. `make run` and `make test` set up all they need; the second time is quick.
.PHONY: lock-plugin run test test-unit test-cluster test-faults test-property test-versions test-node check check-types check-style setup tools browser bench soak clean lock image sbom chart plugin docs help
.DEFAULT_GOAL := help
SHELL := bash
# Tests start hundreds of Python programs, which would compile their modules each time.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Three processes, because tests with a cluster often wait: two leave cores unused.
PYTEST := $(BIN)/python -m pytest -n 3 --no-loadscope-reorder --durations=25
READY := $(VENV)/.ready

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REVISION = $(shell git rev-parse HEAD 2>/dev/null)
SOURCE ?=
IMAGE ?= fairgate:$(VERSION)
SBOM := dist/fairgate-$(VERSION).cdx.json

help:
	@echo "make run     start a local cluster with Fairgate in it and play the demo (about 2 minutes;"
	@echo "             the first time about 10 more, to build Kubernetes from source)"
	@echo "make test    run all tests except test-node, also those on a real API server"
	@echo "make test-unit     the tests that need no cluster: tests/unit and tests/simulation"
	@echo "make test-cluster  contract, integration, end-to-end and browser tests"
	@echo "make test-faults   the tests that break parts of a running cluster"
	@echo "make test-property the property tests; NIGHTLY=1: with all their cases (about 15 minutes)"
	@echo "make test-versions the demo and the tests that depend on Kubernetes, on each version:"
	@echo "             VERSIONS=\"1.34 1.37\"; writes the table of docs/compatibility.md"
	@echo "make test-node     the image and the chart on a real node of this machine (Linux, as root);"
	@echo "             NODE_IMAGE=FILE: an image archive in place of the image of make image"
	@echo "make check   check-types and check-style, side by side"
	@echo "make check-types   only mypy, on app, loadtest, tests/support, tests/fakes and tests/faults"
	@echo "make check-style   only ruff, import contracts and plain English"
	@echo "make bench   print the measures of loadtest/"
	@echo "make soak    play random faults on a real cluster: MINUTES=30, SEED=... to play one again;"
	@echo "             WINDOW=1: a window of a real log, next to the simulator (SPEED=200, GPUS=320)"
	@echo "make setup   only set up: afterwards $(BIN)/fairgate works"
	@echo "make tools   only build what the local cluster needs, into the cache"
	@echo "make browser install chromium (Debian, as root) for the tests of the page; make test does it"
	@echo "make image   build the container image (IMAGE=name:tag, BASE=image with Python, BUILD_FLAGS=...)"
	@echo "make build/node-image.tar  the image as a file, for fairgate dev node load"
	@echo "make sbom    write the bill of materials of the image (CycloneDX) to dist/"
	@echo "make plugin  build the kubectl plugin as one file in dist/, and its krew manifest (SOURCE=URL of the source)"
	@echo "make chart   lint the chart and package it to dist/, ready for helm push (SOURCE=URL of the source)"
	@echo "make release-check, release-notes, version, publish-image, publish-chart, publish-release:"
	@echo "             the steps of a release, in RELEASING.md"
	@echo "make lock    write the three lock files again, after a change of pyproject.toml or"
	@echo "             plugin/requirements.in; UPGRADE=1: with the newest versions"
	@echo "make lock-plugin   only plugin/requirements.lock; UPGRADE=1 as above"
	@echo "make docs    build the documentation as a site into build/site, and check its links"
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
	@$(PYTEST)

test-unit: setup
	@$(PYTEST) tests/unit tests/simulation

test-cluster: setup browser
	@$(BIN)/fairgate dev tools || [ -z "$(REQUIRE_CLUSTER)" ]
	@$(PYTEST) tests/contract tests/integration tests/e2e tests/browser

test-faults: setup
	@$(BIN)/fairgate dev tools || [ -z "$(REQUIRE_CLUSTER)" ]
	@$(PYTEST) tests/faults

test-property: setup
	@$(PYTEST) tests/property

VERSIONS ?= 1.34 1.35 1.36 1.37

test-versions: setup
	@$(BIN)/python -m tests.versions $(VERSIONS)

# The tests are skipped, loudly, if this machine cannot run a node; with REQUIRE_CLUSTER=1 they fail.
NODE_IMAGE := build/node-image.tar

test-node: setup
	@$(BIN)/fairgate dev tools --node >/dev/null && $(MAKE) --no-print-directory $(NODE_IMAGE) || [ -z "$(REQUIRE_CLUSTER)" ]
	@FAIRGATE_IMAGE_ARCHIVE=$(NODE_IMAGE) $(BIN)/python -m pytest --timeout 900 --durations=25 tests/node

# Built on every run, so that no image of an earlier state is tested. Unchanged layers come from the
# cache. For buildah this needs an option.
.PHONY: build/node-image.tar
build/node-image.tar: NAME := localhost/fairgate:dev
build/node-image.tar: export BUILDAH_LAYERS := true
build/node-image.tar:
	@mkdir -p build && rm -f $@
	@$(MAKE) --no-print-directory image IMAGE=$(NAME)
	@for tool in docker podman buildah; do $$tool version >/dev/null 2>&1 && break; done; \
	echo "Exporting $(NAME) with $$tool ..."; \
	if [ $$tool = buildah ]; then buildah push --quiet $(NAME) docker-archive:$@:$(NAME); \
	else $$tool save --output $@ $(NAME); fi

# Debian's package: Playwright's own download would come from a host of its own. The headless shell
# takes half the CPU time of the whole chromium, which serves where the shell cannot be installed.
# Without a browser the tests of the page are skipped; with REQUIRE_CLUSTER=1 they fail.
browser:
	@command -v chromium-headless-shell >/dev/null || { \
	  command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  echo "Installing chromium for the tests of the page (once) ..." && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	  apt-get install -qq -y --no-install-recommends chromium-headless-shell fonts-dejavu-core >/dev/null; } || \
	  command -v chromium >/dev/null || { \
	  echo "There is no chromium; on Debian, as root: apt-get install chromium-headless-shell." >&2; \
	  [ -z "$(REQUIRE_CLUSTER)" ]; }

# mypy uses one core, and the other checks take about as long.
check: setup
	@$(MAKE) --no-print-directory --jobs=2 check-types check-style

check-types:
	$(BIN)/mypy

check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.meta.plain_english --strict

bench: setup
	@$(BIN)/fairgate dev tools
	@$(BIN)/python -m loadtest

soak: setup
	@$(BIN)/fairgate dev tools
	@$(BIN)/python -m $(if $(WINDOW),tests.faults.philly_window --speed $(or $(SPEED),200) --gpus $(or $(GPUS),320) \
	  $(if $(MINUTES),--minutes $(MINUTES)),tests.faults.soak --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED)))

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One lock for every supported Python: packages that only some versions need carry a marker. The
# runtime lock, for the image, has the same versions without the development tools.
OLDEST = 3.11
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version $(OLDEST) --fork-strategy fewest \
  --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: setup
	$(COMPILE) --extra dev --extra mcp --extra plot --extra docs --output-file requirements.lock $(if $(UPGRADE),--upgrade) pyproject.toml
	$(COMPILE) --constraint requirements.lock --output-file requirements-runtime.lock pyproject.toml
	$(MAKE) --no-print-directory lock-plugin

# Packages that nothing in the plugin imports. Each file in it lengthens the start of every command.
NOT_IN_PLUGIN = aiohappyeyeballs aiohttp aiosignal async-timeout attrs frozenlist multidict propcache yarl \
  websocket-client tzdata pygments markdown-it-py mdurl colorama

lock-plugin: OLDEST = 3.10
lock-plugin: setup
	$(COMPILE) $(NOT_IN_PLUGIN:%=--no-emit-package %) --output-file plugin/requirements.lock $(if $(UPGRADE),--upgrade) plugin/requirements.in

# docker without a daemon does not answer `version`, so the next program is tried.
image:
	@for tool in docker podman buildah; do $$tool version >/dev/null 2>&1 && break; tool=; done; \
	[ -n "$$tool" ] || { echo "make image needs docker (with its daemon running), podman or buildah, and none answers; install one." >&2; exit 2; }; \
	echo "Building $(IMAGE) with $$tool ..."; \
	$$tool build --tag $(IMAGE) $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$(REVISION) --build-arg SOURCE=$(SOURCE) $(BUILD_FLAGS) .

# From an environment with the runtime lock alone, because only that has licences and dependencies.
sbom: setup
	@$(BIN)/uv venv --quiet --clear build/runtime
	@$(BIN)/uv pip install --quiet --python build/runtime --require-hashes -r requirements-runtime.lock
	@mkdir -p dist
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file $(SBOM) build/runtime
	@echo "$(SBOM) lists the packages of the image (CycloneDX)."

# The version is that of pyproject.toml. Then: helm push dist/fairgate-VERSION.tgz oci://REGISTRY/charts
chart: setup
	@SOURCE="$(SOURCE)" $(BIN)/python charts/build.py package

# A warning, such as one of a broken link, fails the build. The pages load nothing from another host.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "build/site/index.html is the first page."

# One file for Python 3.10 and later, with its archive and manifest for krew.
plugin: setup
	@SOURCE="$(SOURCE)" $(BIN)/python plugin/build.py

# --- Release: RELEASING.md has the steps ---
.PHONY: version release-check release-notes publish-image publish-chart publish-release

TAG ?= $(GITHUB_REF_NAME)
REGISTRY ?=
PUBLISHED = $(shell tr '[:upper:]' '[:lower:]' <<<'$(REGISTRY)')
NEEDS_REGISTRY = [ -n "$(REGISTRY)" ] || { echo "make $@ needs REGISTRY, such as REGISTRY=ghcr.io/OWNER." >&2; exit 2; }

version:
	@[[ "$(NEW)" =~ ^[0-9]+\.[0-9]+\.[0-9]+$$ ]] || { \
	  echo "make version needs NEW, the next version, such as NEW=0.2.0." >&2; exit 2; }
	@sed -i 's/^version = ".*"/version = "$(NEW)"/' pyproject.toml
	@sed -i -E 's/^(version|appVersion): .*/\1: $(NEW)/' charts/fairgate/Chart.yaml
	@sed -i -E 's/(fairgate[:-])$(subst .,\.,$(VERSION))\b/\1$(NEW)/g' README.md $(wildcard docs/*.md)
	@sed -i "s/^## \[Unreleased\]$$/&\n\n## [$(NEW)] - $$(date -u +%F)/" CHANGELOG.md
	@echo "The version is $(NEW)."

release-notes:
	@awk '/^## / {on = index($$0, "[$(VERSION)]"); next} on' CHANGELOG.md

release-check:
	@[ "$(TAG)" = "v$(VERSION)" ] || { \
	  echo "The tag is '$(TAG)', and the version of pyproject.toml needs v$(VERSION); set TAG, or run make version." >&2; exit 1; }
	@grep -q '^## \[$(VERSION)\] - ' CHANGELOG.md || { \
	  echo "CHANGELOG.md has no section [$(VERSION)]; run make version." >&2; exit 1; }

# The signature names the digest, because a tag can move.
publish-image:
	@$(NEEDS_REGISTRY)
	@mkdir -p build
	docker buildx build --platform linux/amd64,linux/arm64 --provenance mode=max --sbom true --push \
	  --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) --build-arg SOURCE=$(SOURCE) \
	  --tag $(PUBLISHED)/fairgate:$(VERSION) --metadata-file build/image.json .
	cosign sign --yes $(PUBLISHED)/fairgate@$$($(PYTHON) -c \
	  'import json; print(json.load(open("build/image.json"))["containerimage.digest"])')

publish-chart: chart
	@$(NEEDS_REGISTRY)
	@mkdir -p build
	set -o pipefail; helm push dist/fairgate-$(VERSION).tgz oci://$(PUBLISHED)/charts 2>&1 | tee build/chart.txt
	cosign sign --yes $(PUBLISHED)/charts/fairgate@$$(sed -n 's/^Digest: //p' build/chart.txt)

publish-release:
	@mkdir -p build
	@$(MAKE) --silent release-notes >build/notes.md
	gh release create v$(VERSION) --verify-tag --title "Fairgate $(VERSION)" --notes-file build/notes.md dist/*
