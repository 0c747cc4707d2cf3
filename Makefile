# The two commands: `make up` and `make test`. Both set up what they need, and do so once.

# Whatever the environment says: where all modules are compiled anew, each process takes several times as long to start.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv/bin/python
# Where the database does the work, and where its pool could run out. All that is marked `database` can run there, but
# takes far longer: the rest are pages over the same verbs (so is the walk over all that leave a record), or wait for
# processes and Valkey, and not for rows; and the script that checks an export knows no database.
ON_POSTGRESQL := $(wildcard tests/accounts/test_*.py) tests/accounts/webhooks tests/inference/admission \
	$(filter-out tests/accounts/audit/test_offline% %/test_completeness.py,$(wildcard tests/accounts/audit/test_*.py)) \
	tests/inference/test_ledger_check.py tests/inference/test_exits.py tests/inference/api/test_database_connections.py \
	tests/inference/api/test_canary_key.py \
	tests/inference/api/test_hostile_text.py tests/inference/test_cancellation.py tests/inference/test_conversations.py \
	tests/inference/test_intake.py tests/inference/test_language_models.py tests/inference/test_settlement.py
# Asked for by name: reading all the others only to leave them out takes a quarter of a minute.
DRIVE_A_BROWSER = $(shell grep -rl --include='test_*.py' 'mark\.browser' tests)
# Two files at a time, in the order of tests/conftest.py, with the pass over PostgreSQL beside them: much of a test's time
# is waiting. Browsers come last: they are the first to be late where others are at work.
IN_PARALLEL := --numprocesses 2 --dist loadfile --no-loadscope-reorder
UV_COMPILE := .venv/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header

.PHONY: help up test test-quick test-main test-browser test-postgresql check lock configuration set-up-test

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: ## Set up what is missing, then run everything; Ctrl-C stops it in order
	@$(PYTHON) -m scripts.set_up run
	@exec $(VENV) manage.py up

test: set-up-test check ## Set up what is missing, then check style, types, imports and docs, and run all tests
	@$(MAKE) --no-print-directory --jobs 2 --keep-going test-main test-postgresql test-browser

test-quick: ## While working: all but what takes more than a few seconds or a browser, on SQLite (after a `make test`)
	@$(VENV) -m pytest $(IN_PARALLEL) -m "not browser and not slow"

test-main:
	@$(VENV) -m pytest $(IN_PARALLEL) -m "not browser"

test-browser:
	@$(VENV) -m pytest -m browser $(DRIVE_A_BROWSER)

test-postgresql:
	@SIGNALBOX_TEST_DATABASE=postgresql $(VENV) -m pytest -m "database and not browser" $(ON_POSTGRESQL)

set-up-test:
	@$(PYTHON) -m scripts.set_up test

check: ## Check style, types, imports, dependencies and generated docs (after a `make test`)
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	PYTHONPATH=platform .venv/bin/lint-imports --no-cache
	.venv/bin/deptry . --no-ansi
	.venv/bin/mypy
	$(VENV) manage.py makemigrations --check --dry-run
	$(VENV) manage.py configuration_reference --check

configuration: ## Write docs/configuration.md from the settings' own declarations
	$(VENV) manage.py configuration_reference

lock: ## Compile requirements/*.lock anew, each package as new as pyproject.toml allows
	$(UV_COMPILE) --upgrade --output-file requirements/runtime.lock pyproject.toml
	$(UV_COMPILE) --upgrade --group dev --constraint requirements/runtime.lock --output-file requirements/dev.lock pyproject.toml
	$(UV_COMPILE) --upgrade --python-version 3.11 --output-file requirements/node.lock requirements/node.in
	$(UV_COMPILE) --upgrade --python-version 3.11 --output-file requirements/bootstrap.lock requirements/bootstrap.in
