# make demo, make test: the first call builds .venv from the locked requirements; later ones find it there.
# Another Python: make demo PYTHON=python3.13

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PACKAGE := --no-index --no-deps --no-build-isolation --editable .
UV := uv==0.13.9
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command 'make lock' pyproject.toml --extra demo --extra search --group build

.NOTPARALLEL:
.PHONY: help demo test quick torture check fix lock clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name about; do printf '  make %-8s%s\n' "$$name" "$$about"; done

demo: .venv/.run  ## a real study in half a minute: no key, no GPU, no download but the packages
	@$(BIN)/metaloop demo

test: .venv/.dev  ## all tests but torture
	$(BIN)/python -m pytest -m 'not torture' -n 2 --dist worksteal

quick: .venv/.dev  ## the tests that are not slow
	$(BIN)/python -m pytest -m 'not slow and not torture' -n 2 --dist worksteal

torture: .venv/.dev  ## kills, damage, bad disks, power cuts, and whether those see known mistakes: an hour
	@for run in 'crashes.py random 500 1' 'crashes.py random 500 2' 'crashes.py random 500 3' 'crashes.py exact' \
		'crashes.py double' candidates.py 'hostile.py separate' 'hostile.py parameters' faults.py disk.py power.py mutants.py; do \
		echo "== torture/$$run"; $(BIN)/python torture/$$run || bad="$$bad, $$run"; done; \
		[ -z "$$bad" ] || { echo "not as it should be: $${bad#, }" >&2; exit 1; }

check: .venv/.dev  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: .venv/.dev  ## format, and lint what can be mended alone
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: .venv/.dev  ## resolve the requirements anew, as pyproject.toml has them
	$(PIP) install $(UV)
	$(COMPILE) --upgrade --output-file requirements/run.txt
	$(COMPILE) --upgrade --group dev --constraints requirements/run.txt --output-file requirements/dev.txt

clean:  ## .venv and all caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "expected Python 3.11 or later, found $$($(PYTHON) --version 2>&1 | head -n 1); try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.run: requirements/run.txt pyproject.toml | .venv/bin/pip
	$(PIP) install --require-hashes -r requirements/run.txt
	$(PIP) install $(PACKAGE)
	@touch $@

.venv/.dev: requirements/dev.txt pyproject.toml | .venv/bin/pip
	$(PIP) install --require-hashes -r requirements/dev.txt
	$(PIP) install $(PACKAGE)
	@touch .venv/.run $@
