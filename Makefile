# `make demo` and `make test` set up all they need; `make help` lists the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test lint check format bench soak fuzz lowest lock docs dist clean

help:   ## Show what can be made
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed-%: pyproject.toml src/curtsy/__init__.py
	@echo "setting up $(VENV), once: about half a minute"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@

demo: $(VENV)/.installed-redis   ## Show curtsy at work, live, against a small site on loopback
	@$(BIN)/curtsy demo

# The tests start many processes: what they import is compiled once, and kept.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.installed-test   ## Set everything up and run all tests
	@sh tools/need redis-server redis-server
	@sh tools/need chromium chromium
	@# Those alone first: what they have compiled, the others need not compile again.
	@$(BIN)/python -m pytest -m "alone and not soak" $$(grep -rl --include='test_*.py' 'mark\.alone' tests)
	@# Each process below imports every test: compile them once, in two processes.
	@find tests -name 'test_*.py' | xargs -P 2 -n 100 $(BIN)/python -m pytest --collect-only -qq > /dev/null || true
	@# Six at once, even on two processors: tests mostly wait. A process that is done takes tests from the others.
	@$(BIN)/python -m pytest -n 6 --dist worksteal -m "not soak and not alone"

lint: $(VENV)/.installed-check   ## Format, lint, types, known vulnerabilities
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python tools/audit.py

check: lint   ## The same, and all tests
	@$(MAKE) --no-print-directory test

format: $(VENV)/.installed-check   ## Format the code and mend what the linter can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-bench   ## Measure against peers (20 minutes; QUICK=1 only checks that it runs)
	@sh tools/need redis-server redis-server
	@$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

soak: $(VENV)/.installed-soak   ## Run the long tests
	@sh tools/need redis-server redis-server
	@# What comes with Debian's package apache2 besides the server itself would be a service.
	@sh tools/need apache2 apache2-bin
	@sh tools/need nginx nginx
	@sh tools/need lighttpd lighttpd lighttpd-mod-deflate
	@sh tools/need caddy caddy
	@$(BIN)/python -m pytest -m soak --timeout 3600

fuzz: $(VENV)/.installed-fuzz   ## Fuzz the parsers for ten minutes (SECONDS=… for another time)
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600)

LOWEST := .venv-lowest
lowest:   ## Run the tests on the lowest versions of all dependencies that are allowed
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable ".[test,text,fast]"
	@sh tools/need redis-server redis-server
	@sh tools/need chromium chromium
	@$(LOWEST)/bin/python -m pytest -n 3 --dist worksteal -m "not soak and not alone"

UV := $(VENV)/bin/uv
LOCK := $(UV) pip compile --quiet --upgrade --python-version 3.11 --universal --generate-hashes --no-header --no-annotate
lock: $(VENV)/.installed-check   ## Renew the exact versions and hashes that the image installs
	@$(LOCK) pyproject.toml --extra redis --extra dashboard --extra metrics -o deploy/constraints.txt
	@echo "hatchling>=1.21" | $(LOCK) - -o deploy/build-constraints.txt

docs: $(VENV)/.installed-docs   ## Build the documents as a site that can be browsed, into site/
	@$(BIN)/python -m zensical build --strict --clean
	@echo "open site/index.html"

dist: $(VENV)/.installed-dist   ## Build wheel and source distribution into dist/, and install each in an empty environment
	@rm -rf dist
	@$(BIN)/python -m build --quiet --outdir dist .
	@$(BIN)/python -m twine check --strict dist/*
	@PYTHON=$(PYTHON) sh tools/try_dist dist/*

clean:   ## Remove what was built
	rm -rf $(VENV) $(LOWEST) .venv-soak build dist site .cache
