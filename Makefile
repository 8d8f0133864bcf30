# Every target sets itself up: the first one makes .venv (scripts/install), later ones only when what it is made of changes.
# `make` lists the targets. PYTHON below is always the checkout's own; an active virtual environment is left alone.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON := .venv/bin/python
READY  := .venv/.installed
SEMANTIC := .venv/semantic
FASTMCP := .venv/fastmcp
SERVERS := .venv/mcp-servers
LINKS  := $(addprefix src/callgate/,runtime hooks providers tools)
# pytest options, such as: make test ARGS="tests/test_errors.py -x"
ARGS   ?=
# processes for the tests: one more than the cores, since tests wait for servers and for processes that they start. More
# need more connections than the 100 that PostgreSQL has by default. make test JOBS=0 runs them in one
JOBS   ?= $(shell nproc 2>/dev/null | awk '{n = $$1 + 1; print (n > 8 ? 8 : n)}' || echo 3)

unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH
# The tests start hundreds of processes: compiled modules are kept, or each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# A link that is missing, or an environment made in another folder, asks for a new installation.
MISSING := $(filter-out $(wildcard $(LINKS)),$(LINKS))
MOVED   := $(shell [ "$$(cat .venv/.made-in 2>/dev/null)" = "$$(pwd -P)" ] || echo moved)

.PHONY: help install run run-workers test test-versions soak check format wheel-check bench bench-selection bench-semantic bench-workers bench-state bench-simulation bench-mcp test-semantic test-mcp docs pages page-check hashes clean example-billing example-django example-celery example-chat example-approvals example-mcp moved $(MISSING)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(READY) ## make .venv with Callgate (editable) and its development tools

$(READY): pyproject.toml constraints.txt hatch_build.py scripts/install $(MISSING) $(MOVED)
	@scripts/install

run: $(READY) ## run the worked example; INPUT=FILE feeds it a file
	@$(PYTHON) -m examples.order_desk $(if $(INPUT),--input '$(INPUT)')

run-workers: $(READY) ## two workers, one is killed, and the tally of 500 calls; ARGS="--calls N --on sqlite" goes to it
	@$(PYTHON) -m examples.worker_desk $(ARGS)

test: $(READY) ## run the tests, and print the ten slowest; ARGS="..." goes to pytest
	@$(PYTHON) -m pytest -n $(JOBS) --dist worksteal --durations 10 $(ARGS)

test-versions: $(READY) ## run a core selection of the tests under each installed version of Python, and under uvloop
	@$(PYTHON) scripts/interpreters.py

example-chat: $(READY) ## talk with a scripted model, or yours: CALLGATE_PROVIDER, CALLGATE_MODEL; MESSAGE=TEXT
	@$(PYTHON) -m examples.chat $(if $(MESSAGE),--message '$(MESSAGE)')

example-billing: $(READY) ## serve the billing service in FastAPI, on port 8001; ARGS="worker" runs its jobs
	@$(PYTHON) -m examples.billing $(ARGS)

example-django: $(READY) ## serve the small shop in Django, on port 8002
	@$(PYTHON) -m examples.django_service

example-celery: $(READY) ## start its Celery worker; needs Redis, or CELERY_BROKER_URL
	@$(PYTHON) -m examples.celery_service

example-approvals: $(READY) ## serve the approval desk on 127.0.0.1, on port 8004; ARGS="..." goes to it
	@$(PYTHON) -m examples.approval_desk $(ARGS)

example-mcp: $(READY) ## two published MCP servers behind one gate, with policies, a quota, an approval and the audit
	@$(MAKE) --no-print-directory $(SERVERS)/.installed || echo 'They cannot be installed: the example uses servers of its own.'
	@$(PYTHON) -m examples.mcp_proxy $(SERVERS)/bin

# Servers of others have pins of their own: an environment of their own, too.
$(SERVERS)/.installed: Makefile
	@$(PYTHON) -m venv $(SERVERS)
	@$(SERVERS)/bin/python -m pip install --quiet --disable-pip-version-check mcp-server-time==2026.10.19 mcp-server-git==2026.10.19
	@touch $@

test-mcp: $(READY) ## the official MCP conformance suite against a gate, as server and client; npm installs it once, later runs are offline
	@$(PYTHON) scripts/conformance.py $(ARGS)

soak: $(READY) ## run the long proofs
	@$(PYTHON) -m pytest -m "soak or hypothesis" --hypothesis-profile soak --timeout 3600 $(ARGS)

check: $(READY) ## format, lint, types, layers, supply chain, generated pages, wheel content; changes nothing
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m ruff check
	$(PYTHON) -m mypy
	$(PYTHON) -m pyright
	.venv/bin/lint-imports --no-logo
	$(PYTHON) scripts/supply_chain.py code secrets licences
	@$(MAKE) page-check
	@$(MAKE) wheel-check

page-check: $(READY) ## compare the pages that are made from code and tests with what they are made from
	$(PYTHON) -m pytest -q tests/test_contract.py tests/test_docs.py -k 'test_contract or fresh'

pages: $(READY) ## bring those pages up to date
	@$(PYTHON) scripts/contract_map.py
	@$(PYTHON) scripts/docs_tables.py

hashes: $(READY) ## write constraints-hashes.txt from constraints.txt; asks the configured package index
	@$(PYTHON) scripts/supply_chain.py hashes

wheel-check: $(READY) ## compare the wheel and the source archive with the tree
	$(PYTHON) -m pytest -q tests/test_packaging.py

format: $(READY) ## format and fix what can be fixed by itself
	@$(PYTHON) -m ruff format
	@$(PYTHON) -m ruff check --fix

bench: $(READY) ## run the benchmarks; ARGS="..." goes to them
	@$(PYTHON) -m benchmarks $(ARGS)

bench-selection: $(READY) ## how well and how fast tools are picked, beside bm25s and rank-bm25; reads the sample data
	@$(PYTHON) -m benchmarks.selection $(ARGS)

bench-workers: $(READY) ## calls in workers, beside the engine alone, minutes; needs PostgreSQL, or CALLGATE_TEST_POSTGRES
	@$(PYTHON) -m benchmarks.workers $(ARGS)

bench-state: $(READY) ## effects, audit and stock hooks on a store, beside before and SQL by hand, 3 minutes; ARGS="--quick"
	@$(PYTHON) -m benchmarks.state $(ARGS)

bench-simulation: $(READY) ## simulate calls on PostgreSQL and SQLite, compare with a measurement, and plan 10,000 a second
	@$(PYTHON) -m benchmarks.simulation $(ARGS)

bench-mcp: $(FASTMCP)/.installed ## calls and lists through our MCP server beside the SDK's and fastmcp; ARGS="--quick"
	@$(FASTMCP)/bin/python -m benchmarks.mcp $(ARGS)

# fastmcp does not fit the versions of the development tools: an environment of its own.
$(FASTMCP)/.installed: $(READY)
	@$(PYTHON) -m venv $(FASTMCP)
	@$(FASTMCP)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[mcp]' fastmcp==4.2.3
	@touch $@

bench-semantic: $(SEMANTIC)/.installed ## score tool selection by meaning, in an environment of its own: 2 GB, minutes
	@$(SEMANTIC)/bin/python -m benchmarks.semantic $(ARGS)

test-semantic: $(SEMANTIC)/.installed ## run the tests that need the model there
	@$(SEMANTIC)/bin/python -m pytest tests/tools/picking/test_picking_minilm.py $(ARGS)

# torch first: the build for the CPU, where the configured index has one, brings no libraries for a GPU.
$(SEMANTIC)/.installed: $(READY)
	@$(PYTHON) -m venv $(SEMANTIC)
	@$(SEMANTIC)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		hatchling torch hypothesis pytest pytest-asyncio pytest-timeout pytest-xdist
	@$(SEMANTIC)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--no-build-isolation --editable '.[semantic]'
	@touch $@

docs: .venv/.docs ## build the site of the docs in site/
	@NO_COLOR=1 $(PYTHON) scripts/docs_site.py

.venv/.docs: $(READY)
	@$(PYTHON) -m uv pip install --quiet --python $(PYTHON) --constraints constraints.txt \
		--no-build-isolation-package callgate --editable '.[docs]'
	@touch $@

clean: ## remove .venv, the links, build output and caches
	@rm -rf .venv dist build site htmlcov .coverage .coverage.* benchmarks/out
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@rm -f $(LINKS)
	@find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
