# SPDX-License-Identifier: Apache-2.0
# `make help` lists what there is. Every target sets up .venv by itself the first time.

# The oldest supported TensorFlow where Python has it (3.9 to 3.11), otherwise the newest.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.10 python3.9 python3.12 python3.13,$(if $(shell command -v $(p)),$(p))) python3)
TENSORFLOW ?= "tensorflow-cpu==2.15.*; python_version<'3.12'" "tensorflow-cpu>=2.16,<2.22; python_version>='3.12'"
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

# Linters change their rules between releases, so these versions are exact.
RUFF := ruff==0.17.5
CLANG_FORMAT := clang-format==18.1.8
MYPY := mypy==2.4.1; python_version >= '3.10'
PRE_COMMIT := pre-commit==4.3.0

# Each of two processes starts with one half of the tests, in order, so that most files with fixtures
# of their own stay in one process. A process that finishes early takes tests from the other.
PARALLEL := -n 2 --dist worksteal

# Tests start many processes; without it, each would compile the package's Python sources again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo demo-ps test test-long test-slow test-v1 test-newest test-matrix test-wheel test-cc test-sanitized test-includes fuzz lint format hooks bench soak soak-ps soak-online docs docs-site library wheel clean help
.DEFAULT_GOAL := help

demo: library $(VENV)/.zoo ## train a model on real ratings, evaluate, export, answer one request
	$(BIN)/python -m model_zoo.demo

demo-ps: library $(VENV)/.zoo ## train on a cluster of five processes on this machine
	$(BIN)/python -m model_zoo.cluster

# Optimizing the tests' small graphs takes longer than running them; the other targets do it. Of
# parameters that do not depend on each other, make test-slow runs each combination.
test: library $(VENV)/.tests ## run the Python tests, all but the long and the slow ones, in two processes
	$(BIN)/python -m pytest -q $(PARALLEL) --no-grappler --each-value -m "not long and not slow"

# Most of these are whole programs, which begin as those of users of TensorFlow 1 do.
test-long: library $(VENV)/.tests ## run the Python tests that take more than half a second, after tf.disable_v2_behavior()
	$(BIN)/python -m pytest -q $(PARALLEL) --v1-behavior --each-value --parameters 2 -m long

test-slow: library $(VENV)/.tests ## run the Python tests that take minutes, and all others
	$(BIN)/python -m pytest -q $(PARALLEL) -m "slow or not slow"

# Tests whose processes set their own behavior, and tests that run no graph; the model zoo and the
# pages, of which make test-long runs the long tests after tf.disable_v2_behavior().
WITHOUT_BEHAVIOR := fuzz training/test_cluster.py porting/test_scripts.py porting/test_migrating.py \
  ops/kernel/test_failing_allocations.py test_figures.py test_house_rules.py test_layers.py \
  test_packaging.py test_release_matrix.py ops/core ops/test_memory_limits.py tools \
  checkpoint/test_saver_crash.py checkpoint/test_saver_limits.py checkpoint/test_hostile_index.py \
  _tensorflow/test_keras.py test_soak.py test_soak_ps.py test_soak_online.py \
  training/test_kubernetes.py model_zoo test_docs.py test_site.py test_constants_in_pages.py \
  porting/test_porting_names.py porting/test_porting_sed.py test_sizes.py \
  _tensorflow/test_private_names.py

# What it changes shows with a test's first parameters; the others are more cases for the kernels.
test-v1: library $(VENV)/.tests ## run the Python tests, all but the long and the slow ones, after tf.disable_v2_behavior()
	$(BIN)/python -m pytest -q $(PARALLEL) --v1-behavior --parameters 1 -m "not long and not slow" $(WITHOUT_BEHAVIOR:%=--ignore tests/%)

# Files of both releases, private names, tables, Estimators.
NEWEST := golden _tensorflow table optimizers ops/lookup ops/table ops/train \
  porting/test_migrating.py test_estimator.py test_house_rules.py

test-newest: ## run a part of the Python tests on TensorFlow 2.21, if there is a Python 3.13
	PYTEST_ADDOPTS="--parameters 1" $(PYTHON) _build/test_matrix.py --pairs 2.21/3.13 --skip_missing \
	  --tests $(NEWEST:%=tests/%)

test-matrix: ## run the Python tests on each pair of TensorFlow and Python, or on those in PAIRS
	$(PYTHON) _build/test_matrix.py --output benchmarks/results/test_matrix.json \
	  $(if $(PAIRS),--pairs $(PAIRS)) $(if $(AGAIN),--again)

# TSan takes longest, so it starts first.
test-cc: ## run the C++ core's tests: with ASan + UBSan, with TSan, and plain where those do less
	$(MAKE) -C tests/ops/core -j2 binaries
	$(MAKE) -C tests/ops/core -j2 --output-sync=target tsan plain asan

test-sanitized: $(VENV)/.tests ## run all kernels in TensorFlow with ASan + UBSan, and with TSan
	$(BIN)/python _build/sanitized.py

# The everyday build joins sources and precompiles headers, so it does not see a missing include.
test-includes: $(VENV)/.installed ## compile each C++ source alone, with only the headers that it includes
	$(BIN)/python setup.py --quiet build_ext --no-precompile

test-wheel: wheel $(VENV)/.tests ## build the wheel and try it on the oldest and the newest TensorFlow, in new environments
	$(BIN)/python -m pytest -q -m slow tests/test_packaging.py -k wheel_in_dist

# Shows progress, and how to try each seed again that failed.
fuzz: library $(VENV)/.tests ## fuzz the package with 10,000 inputs of each kind, or FUZZ_COUNT, in two processes
	$(BIN)/python tests/fuzz/campaign.py $(if $(FUZZ_COUNT),--count $(FUZZ_COUNT))

# mypy reads the sources of NumPy, so it needs the library's environment.
lint: $(VENV)/.lint $(VENV)/.installed ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find ops tests -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run --Werror
	@if test -x $(BIN)/mypy; then echo "$(BIN)/mypy"; $(BIN)/mypy; else \
	  echo "types are not checked: this release of mypy needs Python 3.10 or later"; fi

format: $(VENV)/.lint ## rewrite Python and C++ in the style that lint checks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find ops tests -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format -i

hooks: $(VENV)/.lint ## check style, formatting and types of what each git commit changes
	@$(PIP) $(PRE_COMMIT)
	$(BIN)/pre-commit install

docs: library $(VENV)/.tests ## write the pages' figures, pictures and list of errors again
	$(BIN)/python -m benchmarks.figures
	$(BIN)/python -m benchmarks.pictures
	$(BIN)/python -m benchmarks.draw_serving_graph docs/serving_graph.png
	$(BIN)/python -m benchmarks.draw_compression_stages docs/sample_compression.png
	$(BIN)/python -m docs.site.troubleshooting

# Pages that no longer match what they are made of fail the tests; a warning fails the build.
docs-site: library $(VENV)/.docs ## build the documentation site in build/site/html
	$(BIN)/python -m docs.site.sources build/site/source
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs/site \
	  build/site/source build/site/html

soak: library ## train tables under churn for 100,000 steps; their memory must stay level
	$(BIN)/python -m benchmarks.soak

soak-ps: library $(VENV)/.zoo ## train for 30 minutes on a cluster of which a task is killed every minute
	$(BIN)/python -m benchmarks.soak_ps

soak-online: library $(VENV)/.tests ## train, publish and serve for 20 minutes, and kill a process every 20 seconds
	$(BIN)/python -m benchmarks.soak_online

bench: library ## measure lookups and train steps against TensorFlow's own, about a minute
	$(BIN)/python -m benchmarks.bench_table

library: $(VENV)/.installed ## build rec_estimator/_rec_ops_*.so where a C++ source changed
	@$(BIN)/python setup.py --quiet build_ext --inplace

wheel: $(VENV)/.installed ## build a wheel for all supported TensorFlow releases in dist/
	$(BIN)/python _build/every_release.py
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist \
	  --config-settings=--build-option=--every-release .

# TensorFlow first: the library is compiled for it; ops/core, which needs none, in the meantime. The
# library before the package: pip would hide the compiler's progress, and finds it built.
$(VENV)/.installed: setup.py setup.cfg pyproject.toml $(wildcard _build/*.py) | $(BIN)/python
	@echo "installing TensorFlow and compiling the library: about four minutes the first time, on two cores"
	@$(BIN)/python _build/library.py & core=$$!; \
	missing=$$($(BIN)/python _build/tensorflow_dist.py) && { test -z "$$missing" || $(PIP) $(TENSORFLOW); } && \
	$(PIP) "setuptools>=70.1"; installed=$$?; wait $$core && exit $$installed
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@$(PIP) --no-build-isolation --editable .
	@touch $@

# pip finds rec_estimator installed, and adds what its extra asks for.
# --no-deps: tensorflow-serving-api requires tensorflow, whose files overwrite tensorflow-cpu's.
$(VENV)/.tests: $(VENV)/.installed
	@$(PIP) 'rec_estimator[test]'
	@$(PIP) --no-deps "tensorflow-serving-api==$$(cd _build && ../$(BIN)/python -c \
	  'import tensorflow_dist; print(tensorflow_dist.find().minor)').*"
	@touch $@

# Reads YAML files.
$(VENV)/.zoo: $(VENV)/.installed
	@$(PIP) 'rec_estimator[zoo]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	@$(PIP) 'rec_estimator[docs]'
	@touch $@

$(VENV)/.lint: Makefile | $(BIN)/python
	@$(PIP) $(RUFF) $(CLANG_FORMAT) "$(MYPY)"
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 9) <= v < (3, 14) else \
	  "PYTHON must be Python 3.9 to 3.13, which TensorFlow needs, got %d.%d; " \
	  "install one and run: make PYTHON=python3.11" % v[:2])'
	@$(PYTHON) -m venv $(VENV)

clean: ## remove everything built, but not .venv
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	rm -f rec_estimator/_rec_ops_*.so
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16
