# Every target makes .venv first (scripts/bootstrap; instant when it is up to date).
# ARGS= is handed on:  make test ARGS="-k claim"   make bench ARGS="--rows 100000"
# RUNNER= is where the demo's runs are executed:  make demo RUNNER=ray

ARGS ?=
PROCESSES ?= 2
RUNNER ?= processes

PYTHON_IN_VENV := .venv/bin/python
POSTGRES := $(PYTHON_IN_VENV) scripts/postgres.py run --
PYTEST := $(PYTHON_IN_VENV) -m pytest -n $(PROCESSES) --dist loadgroup $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help bootstrap demo test test-postgres test-sqlite test-debian lint conformance bench bench-peers chaos docs requirements clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

bootstrap: ## Find or fetch Python 3.12+, make .venv, install the pinned requirements
	@scripts/bootstrap

demo: bootstrap ## A small project does real work while its workers are stopped and killed
	$(POSTGRES) $(PYTHON_IN_VENV) examples/demo.py --runner $(RUNNER) $(ARGS)

test: test-postgres test-sqlite ## All tests on PostgreSQL and on SQLite, then the conformance suite
	$(MAKE) conformance ARGS=

test-postgres: bootstrap ## The tests on PostgreSQL only (DATABASE_URL, or an embedded one)
	MANTA_TEST_DATABASE=postgres $(POSTGRES) $(PYTEST)

test-sqlite: bootstrap ## The tests on SQLite only
	MANTA_TEST_DATABASE=sqlite $(PYTEST)

# What speaks with the server. The rest of the suite would find nothing else there.
ON_DEBIAN := tests/ledger tests/test_servers.py $(addprefix tests/worker/test_,$(addsuffix .py,\
	working queues ringing outages looking scribe))

test-debian: bootstrap ## The ledger and the worker on Debian's PostgreSQL, which has a JIT; says so where there is none
	@binaries=$$($(PYTHON_IN_VENV) scripts/debian.py postgres) || { echo "test-debian: NOTHING WAS TESTED"; exit 0; }; \
	unset DATABASE_URL; set -ex; \
	MANTA_POSTGRES_BIN=$$binaries MANTA_TEST_DATABASE=postgres $(POSTGRES) $(PYTEST) -m "not slow" $(ON_DEBIAN); \
	$(PYTHON_IN_VENV) -m benchmarks.servers --quick

lint: bootstrap ## Style, types, missing migrations
	$(PYTHON_IN_VENV) -m ruff check .
	$(PYTHON_IN_VENV) -m ruff format --check .
	$(PYTHON_IN_VENV) -m mypy
	$(PYTHON_IN_VENV) scripts/check_typing.py
	MANTA_TEST_DATABASE=sqlite $(PYTHON_IN_VENV) -m tests.manage makemigrations --check --dry-run

conformance: bootstrap ## Django's own tests of its tasks framework against our backend, on both databases
	MANTA_TEST_DATABASE=postgres $(POSTGRES) $(PYTHON_IN_VENV) conformance/run.py $(ARGS)
	MANTA_TEST_DATABASE=sqlite $(PYTHON_IN_VENV) conformance/run.py $(ARGS)

bench: bootstrap ## Measure against plain SQL, COPY and bulk_create in the same run
	$(POSTGRES) $(PYTHON_IN_VENV) -m benchmarks $(ARGS)

bench-peers: bootstrap ## Measure us and the peers side by side, and write docs/benchmarks/peers.md (about an hour)
	$(POSTGRES) $(PYTHON_IN_VENV) -m benchmarks.peers $(ARGS)

chaos: bootstrap ## Kill what can be killed and count what was lost (nothing may be)
	$(POSTGRES) $(PYTHON_IN_VENV) -m chaos $(ARGS)

docs: bootstrap ## Build the documentation into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(PYTHON_IN_VENV) -m mkdocs build --strict --clean --site-dir site $(ARGS)

requirements: bootstrap ## Pin requirements/dev.txt anew from dev.in (ARGS=--upgrade: the newest of all)
	scripts/requirements $(ARGS)

clean: ## Remove all that was made here, .venv included
	rm -rf .venv .cache site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
