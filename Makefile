# `make help` lists what there is. Every target sets up .venv by itself the first time.

# TensorFlow 2.15 has wheels for Python 3.9 to 3.11 only.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.10 python3.9,$(if $(shell command -v $(p)),$(p))) python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

# Formatters change their mind between releases, so lint asks for exactly these.
RUFF := ruff==0.17.5
CLANG_FORMAT := clang-format==18.1.8

# Each process starts with half of the tests in order, so files with fixtures of their own stay whole
# but for the few tests that one who is done early takes over.
PARALLEL := -n 2 --dist worksteal

.PHONY: demo test test-slow test-cc lint format bench library clean help
.DEFAULT_GOAL := help

demo: library ## train a model on real ratings, evaluate, export, answer one request
	$(BIN)/python -m model_zoo.demo

test: library ## run the Python tests, all but the slow ones, in two processes
	$(BIN)/python -m pytest -q $(PARALLEL)

test-slow: library ## run the slow Python tests too
	$(BIN)/python -m pytest -q $(PARALLEL) -m "slow or not slow"

test-cc: ## run the C++ core's tests: plain, ASan + UBSan, TSan
	$(MAKE) -C tests/ops/core -j2 binaries
	$(MAKE) -C tests/ops/core plain asan tsan

lint: $(VENV)/.lint ## check style and formatting of Python and C++
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find ops tests -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/.lint ## rewrite Python and C++ in the style that lint checks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find ops tests -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format -i

bench: library ## measure lookups and train steps against TensorFlow's own, about a minute
	$(BIN)/python -m benchmarks.bench_table

library: $(VENV)/.installed ## build rec_estimator/_rec_ops.so where a C++ source changed
	@$(BIN)/python setup.py --quiet build_ext --inplace

# TensorFlow first: the package's isolated build then finds it and needs no copy of its own.
$(VENV)/.installed: setup.py setup.cfg pyproject.toml $(wildcard _build/*.py) | $(BIN)/python
	@echo "installing TensorFlow and the tests' requirements into $(VENV), about a minute the first time"
	@missing=$$($(BIN)/python _build/tensorflow_dist.py) && \
	  { test -z "$$missing" || $(PIP) "$$missing"; }
	@$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/.lint: Makefile | $(BIN)/python
	@$(PIP) $(RUFF) $(CLANG_FORMAT)
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 9) <= v < (3, 12) else \
	  "PYTHON must be Python 3.9 to 3.11, which TensorFlow 2.15 needs, got %d.%d; " \
	  "install one and run: make PYTHON=python3.11" % v[:2])'
	@$(PYTHON) -m venv $(VENV)

clean: ## remove everything built, but not .venv
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache
	rm -f rec_estimator/_rec_ops.so rec_estimator/_build_info.py
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12
