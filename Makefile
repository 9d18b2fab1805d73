# On a fresh machine with Python 3.11: `make demo`, `make test`. Everything else follows from them.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test slow anywhere coverage hunt siege mutants check bench lock bom docs graph clean

VENV  := .venv
PY    := $(VENV)/bin/python
# Inside the environment, so that deleting the environment deletes it too.
STAMP := $(VENV)/.setup-done
PIP   := $(PY) -m pip install --quiet --disable-pip-version-check
# Asked to run, not just looked up: a version manager may leave a python3.11 on the path that does not start.
PYTHON ?= $(shell for p in python3.11 python3; do if $$p -c '' >/dev/null 2>&1; then echo $$p; break; fi; done)

NEWER  := import sys; v = sys.version_info
WANTED := resolvent needs Python 3.11 or newer
ADVICE := name one with: make setup PYTHON=/path/to/python3.11

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## build .venv from requirements.lock (again only when it, constraints.txt or pyproject.toml changes)

# The stamp is the last thing made and the first thing removed: an interrupted setup leaves none.
$(STAMP): pyproject.toml constraints.txt requirements.lock
	@rm -f $@
	@test -n "$(PYTHON)" || { echo "$(WANTED), but none was found; $(ADVICE)" >&2; exit 1; }
	@"$(PYTHON)" -c '$(NEWER); v >= (3, 11) or sys.exit("$(WANTED), but $(PYTHON) is %d.%d; $(ADVICE)" % v[:2])'
	@$(PY) -c '$(NEWER); import pip; sys.exit(v < (3, 11))' >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	$(PIP) --require-hashes --no-deps -r requirements.lock
	$(PIP) -c constraints.txt torch
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## solve the paper's two problems with every algorithm: tables, pictures, reports
	$(VENV)/bin/resolvent compare least-squares --rounds 600 --out out
	$(VENV)/bin/resolvent compare logistic --rounds 800 --out out
	@echo "see them move: $(VENV)/bin/resolvent ui --runs out"

# Tests start many processes: what they compile is stored, inside the environment, whatever the caller's variables say.
test: $(STAMP) ## the tests, without the slow ones, on all cores
	PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(abspath $(VENV))/pycache $(PY) -m pytest -n auto --dist worksteal

slow: $(STAMP) ## the slow tests
	$(PY) -m pytest -m slow -n auto -o timeout=0

anywhere: $(STAMP) ## the numerical tests with the kernels of other processors; ARGS=--short: in a few minutes
	PYTHONPATH=tests $(PY) -m anywhere $(ARGS)

# What Numba and Triton compile cannot be traced: those lines count as missed.
coverage: $(STAMP) ## the tests, and which lines and branches of the package they do not reach
	$(PY) -m pytest -n auto --cov --cov-report=term

hunt: $(STAMP) ## new random cases of every family against independent code, for some minutes
	PYTHONPATH=tests $(PY) -m hunt $(ARGS)

siege: $(STAMP) ## damaged run folders, hostile files, kills, full disks, strangers, and nodes that lie, for some minutes
	PYTHONPATH=tests $(PY) -m siege $(ARGS)

mutants: $(STAMP) ## small mistakes in the modules that keep others out: which of them do the tests nearby not notice?
	PYTHONPATH=tests $(PY) -m mutants $(ARGS)

check: $(STAMP) ## formatting, lint, types: of the package, the tests and the benchmarks
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

bench: $(STAMP) ## speed, as ratios against plain loops within one run
	$(PY) -m bench

lock: $(STAMP) ## requirements.lock: the versions of constraints.txt with the checksums of their files
	grep -v '^torch==' constraints.txt | $(VENV)/bin/uv pip compile --quiet --generate-hashes --no-deps --no-annotate --no-header \
		--python-version 3.11.5 - -o requirements.lock

bom: $(STAMP) ## dist/bom.json: every package of the environment, as a CycloneDX bill of materials for a release
	@mkdir -p dist
	$(VENV)/bin/uv tool run --from cyclonedx-bom cyclonedx-py environment $(PY) --pyproject pyproject.toml -o dist/bom.json

docs: $(STAMP) ## the documentation as a site in build/site, with an API reference; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo "build/site/index.html: open it in a browser; for its search: $(PY) -m http.server -d build/site"

graph: $(STAMP) ## the floors of the package, what each imports, and whether any import points upwards
	@PYTHONPATH=tests $(PY) -m import_graph

clean: ## remove the environment, caches and build outputs
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
