# One place for every command; CI runs exactly these. Needs Python 3.11+, Java 17 and Linux.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FOR ?=
SEEDS ?= 20
NODES ?= mix
JOBS ?= 2
MUTANTS ?= 100000
# Above the number of cores: most of the tests' time is waiting.
WORKERS ?= 3
SPARK_WORKERS ?= 2
# In virtual time: they judge nothing by how long it takes.
SIMULATED := tests/simulation tests/broker/raft
LEFT_OUT ?=

.PHONY: help setup jars up down check format test test-all test-simulated test-fast conformance conformance-suites fuzz simulate simulate-mutants simulate-reached mutation faults crashes end-to-end chaos scale images dockerfiles benchmark benchmark-jobs lock protocols clean

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

check: setup ## format, lint, types, layers, circles, lengths
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py

format: setup ## write the format and the fixes that are safe
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check jars ## set up and run the tests that take some ten minutes on two cores
	$(BIN)/python -m pytest -n $(WORKERS) --durations=25 -m "not long and not slow and not spark and not java"

test-all: check jars ## set up and run all tests
	@# Spark by itself: beside others on two cores it starts later than its tests wait for. Two
	@# at a time: drivers mostly wait for each other, for brokers and for windows to close.
	@# Meanwhile the archive is made with which their JVMs start sooner.
	@failed=0; \
	(cd tests && exec nice ../$(BIN)/python -m support.shared_classes) & \
	$(BIN)/python -m pytest -n $(WORKERS) --durations=25 -m "not spark" $(addprefix --ignore=,$(LEFT_OUT)) || failed=$$?; \
	$(BIN)/python -m pytest -n $(SPARK_WORKERS) --durations=25 -m spark || failed=$$?; \
	exit $$failed

test-simulated: setup ## the part of test-all in virtual time
	$(BIN)/python -m pytest -n 2 --timeout=1800 --durations=10 $(SIMULATED)

test-fast: setup ## the tests that start neither brokers nor clusters, neither Spark nor Java
	HEADRACE_TEST_FAST=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not cluster and not spark and not java and not slow"

conformance: jars ## other people's clients against our broker
	$(BIN)/python -m pytest tests/conformance

conformance-suites: jars ## the test suites of franz-go and librdkafka; ARGS for run.py, PEER=kafka
	$(BIN)/python tests/conformance/suites/run.py $(if $(PEER),--peer $(PEER)) $(ARGS)

fuzz: jars ## mutants of real clients' requests: MUTANTS=100000; SEED=7 for the same ones
	HEADRACE_FUZZ_MUTANTS=$(MUTANTS) $(if $(SEED),HEADRACE_FUZZ_SEED=$(SEED)) \
	  $(BIN)/python -m pytest -s tests/conformance/test_fuzz.py

simulate: setup ## seeds in virtual time: SEED=7 NODES=3 replays one; SEEDS=1000 FIRST=1 runs a range
	cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulation.run --nodes $(NODES) --jobs $(JOBS) \
	  $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) $(if $(FIRST),--first $(FIRST)))

simulate-mutants: setup ## look for every planted bug from the first seed (FIRST=n another, NAME="a part of its name")
	cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulation.mutants.run --first $(or $(FIRST),1) --jobs $(JOBS) --name "$(NAME)"

simulate-reached: setup ## 1,000 seeds must reach every rare situation that the simulator names
	cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulation.run --nodes mix --jobs $(JOBS) \
	  --seeds 1000 --reached $(if $(FIRST),--first $(FIRST)) $(if $(RECORD),--record $(abspath $(RECORD)))

mutation: setup ## mutants of the source against unit tests and seeds: SAMPLE=300 SEED=n SKIP=n
	cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulation.mutation.run --sample $(or $(SAMPLE),300) \
	  $(if $(SEED),--seed $(SEED)) $(if $(SKIP),--skip $(SKIP))

faults: setup ## kills, restarts in every order, cut networks, full disks, clocks that jump; the long form
	HEADRACE_FAULTS_RECORDS=1000000 HEADRACE_FAULTS_SECONDS=600 $(BIN)/python -m pytest tests/faults

crashes: jars ## drivers, executors and sinks of jobs killed at every step of a batch, for each sink; the long form
	HEADRACE_CRASHES=all $(BIN)/python -m pytest tests/jobs/test_crashes.py tests/jobs/test_accounts.py tests/jobs/test_delivery.py

images: setup ## build both container images, without Docker, as archives in build/images
	images/build headrace
	images/build jobs

end-to-end: setup ## on the Kubernetes of KUBECONFIG; ARGS for pytest
	tests/end_to_end_kubernetes/run $(ARGS)

scale: setup ## the operator with 10,000 Topics and 100 Clusters, ten of which answer (KUBELAB or KUBEBUILDER_ASSETS)
	HEADRACE_SCALE_TOPICS=$(or $(TOPICS),10000) HEADRACE_SCALE_CLUSTERS=$(or $(CLUSTERS),100) \
	  HEADRACE_SCALE_REACHABLE=$(or $(REACHABLE),10) $(BIN)/python -m pytest -n 0 tests/scale

chaos: setup ## on Kubernetes: kills and deletes at random while every record is checked: FOR=20m SEED=n
	HEADRACE_CHAOS_SECONDS=$(or $(FOR),20m) HEADRACE_CHAOS_SEED=$(SEED) tests/end_to_end_kubernetes/run -n 0 -s -k test_whatever_happens

dockerfiles: setup ## build images/Dockerfile.headrace with buildah and test it (root)
	HEADRACE_TEST_DOCKERFILES=1 $(BIN)/python -m pytest tests/operator/test_dockerfiles.py

benchmark: setup ## beside Apache Kafka on this machine; writes docs/benchmarks.md
	$(BIN)/python tests/benchmark/run.py --write docs/benchmarks.md
	$(BIN)/python tests/benchmark/run.py --cluster --write docs/benchmarks.md

benchmark-jobs: jars ## jobs beside hand-written PySpark and Flink, and what exactly once costs; RECORDS=1000000 is short; LIVE=2000 is an hour of two compilers
	$(BIN)/python tests/benchmark/jobs.py --records $(or $(RECORDS),20000000) $(if $(LIVE),--live $(LIVE))

lock: setup ## write requirements/*.txt from pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --python-version 3.11 --extra spark --extra sinks --extra schemas --extra operator --extra dev pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --python-version 3.11 -c requirements/dev.txt --extra operator pyproject.toml -o requirements/runtime.txt
	printf 'structlog\nuv\n' | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --python-version 3.11 -c requirements/dev.txt - -o requirements/images.txt

protocols: setup ## write docs/apis.md, docs/simulation-lists.md and the diagrams of docs/protocols.md from the code
	cd tests && ../$(BIN)/python -m support.protocols && ../$(BIN)/python -m support.api_page
	cd tests && ../$(BIN)/python -m simulation.lists

clean: ## remove what the tools left
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
