# One place for every command; CI runs exactly these. Needs Python 3.11+, Java 17 and Linux.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FOR ?=
SEEDS ?= 20
NODES ?= 1
JOBS ?= 2

.PHONY: help setup jars up down check format test test-fast conformance simulate simulate-mutants faults end-to-end images dockerfiles benchmark lock clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(VENV)/.installed: requirements/dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(VENV)/.installed ## make the virtual environment from the locked requirements

jars: setup ## resolve the Spark connector's jars ahead of time
	@$(BIN)/python -m headrace_jobs.jars

up: jars ## set up and run the main job: brokers, topics, a Spark job, on this machine
	$(BIN)/headrace up manifests/examples/cpu-load $(if $(FOR),--for $(FOR))

down: setup ## stop what `up` left and delete its data
	$(BIN)/headrace down --delete-data --yes

check: setup ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## write the format and the fixes that are safe
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check jars ## set up and run all tests
	$(BIN)/python -m pytest

test-fast: setup ## the tests that need neither Spark nor Java
	$(BIN)/python -m pytest -m "not spark and not java and not slow"

conformance: jars ## other people's clients against our broker
	$(BIN)/python -m pytest tests/conformance

simulate: setup ## seeds in virtual time: SEED=7 replays one; SEEDS=1000 FIRST=1 NODES=3 runs a range
	cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulation.run --nodes $(NODES) --jobs $(JOBS) \
	  $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) $(if $(FIRST),--first $(FIRST)))

simulate-mutants: setup ## look for every planted bug from the first seed
	cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulation.mutants.run --first 1

faults: setup ## kills, restarts in every order, cut networks, full disks, clocks that jump; the long form
	HEADRACE_FAULTS_RECORDS=1000000 HEADRACE_FAULTS_SECONDS=600 $(BIN)/python -m pytest tests/faults

images: setup ## build both container images, without Docker, as archives in build/images
	images/build headrace
	images/build jobs

end-to-end: setup ## on the Kubernetes of KUBECONFIG; ARGS for pytest
	tests/end_to_end_kubernetes/run $(ARGS)

dockerfiles: setup ## build images/Dockerfile.headrace with buildah and test it (root)
	HEADRACE_TEST_DOCKERFILES=1 $(BIN)/python -m pytest tests/operator/test_dockerfiles.py

benchmark: setup ## beside Apache Kafka on this machine; writes docs/benchmarks.md
	$(BIN)/python tests/benchmark/run.py --write docs/benchmarks.md
	$(BIN)/python tests/benchmark/run.py --cluster --write docs/benchmarks.md

lock: setup ## write requirements/*.txt from pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --python-version 3.11 --extra spark --extra operator --extra dev pyproject.toml -o requirements/dev.txt
	printf 'structlog\nuv\n' | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --python-version 3.11 -c requirements/dev.txt - -o requirements/images.txt

clean: ## remove what the tools left
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
