# Everything runs in a local virtual environment that these targets make; the second time is quick.
# Needs: Linux, Python >= 3.11 with venv, a C++20 compiler, make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
SOURCES := $(shell find native src -name '*.cc' -o -name '*.h' -o -name '*.py' -o -name '*.pyi') \
           CMakeLists.txt pyproject.toml README.md LICENSE
export PATH := $(CURDIR)/$(BIN):$(PATH)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest

.PHONY: demo test test-native test-python test-sanitizers test-stress test-chaos test-restarts fuzz bench bench-torch bench-tensorflow test-tensorflow-versions peers lint format \
        wheel clean help

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: $(STAMPS)/package $(STAMPS)/torch  ## Train a classifier on two workers
	horovodrun -np 2 python examples/torch/mnist.py

test: test-native test-python  ## Run all tests

test-python: $(STAMPS)/package $(STAMPS)/peers $(STAMPS)/tensorflow $(STAMPS)/slurm
	$(PYTEST)

# The core of it on other versions, each in an environment of its own. The wheel is the same.
TENSORFLOWS ?= 2.16.2 2.18.1 2.20.0
test-tensorflow-versions: wheel $(addprefix test-tensorflow-,$(TENSORFLOWS))  ## Tests of TensorFlow on TENSORFLOWS

test-tensorflow-%: wheel
	$(BIN)/python tools/test_tensorflow.py --version $* --environment .venv-tensorflow-$* --wheels dist

test-native: test-native-release test-sanitizers  ## Unit tests of the engine, plain and under sanitizers

test-sanitizers: test-native-tsan test-native-asan

test-native-%: $(STAMPS)/tools
	cmake --preset $* > build/$*.log 2>&1 || { cat build/$*.log; exit 1; }
	cmake --build --preset $*
	ctest --preset $*

ROUNDS ?= 20
test-stress: $(STAMPS)/package $(STAMPS)/peers $(STAMPS)/tensorflow $(STAMPS)/slurm  ## The multi-process tests, ROUNDS times, with all cores loaded
	$(BIN)/python tests/support/stress.py --rounds $(ROUNDS)

fuzz: MINUTES ?= 5
fuzz: $(STAMPS)/tools  ## Feed every native reader of bytes with anything, for MINUTES; needs clang
	cmake --preset fuzz > build/fuzz.log 2>&1 || { cat build/fuzz.log; exit 1; }
	cmake --build --preset fuzz
	$(BIN)/python tools/fuzz.py --minutes $(MINUTES)

SEED ?=
test-chaos: MINUTES ?= 10
test-chaos: $(STAMPS)/package  ## Random faults for MINUTES, and what the survivors tell; again with SEED=...
	$(BIN)/python -m tests.support.chaos --minutes $(MINUTES) --seed "$(SEED)"

RESTARTS ?= 1000
test-restarts: $(STAMPS)/package  ## One job killed and started again, RESTARTS times: nothing may be left
	$(BIN)/python -m tests.support.chaos --restarts $(RESTARTS) --seed "$(SEED)"

bench: $(STAMPS)/package $(STAMPS)/peers  ## Measure against Gloo, Open MPI and MPICH
	$(BIN)/python -m benchmarks

bench-torch: $(STAMPS)/package $(STAMPS)/peers  ## Measure training steps against DDP and silent copies
	$(BIN)/python -m benchmarks.training

bench-tensorflow: $(STAMPS)/package $(STAMPS)/peers $(STAMPS)/tensorflow  ## Measure model.fit against MultiWorkerMirroredStrategy and silent copies
	$(BIN)/python -m benchmarks.tensorflow

peers: $(STAMPS)/peers  ## Install what is compared with: torch, Open MPI, MPICH

lint: $(STAMPS)/package $(STAMPS)/torch $(STAMPS)/tensorflow  ## Check style, types and layers
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	clang-format --dry-run --Werror $$(git ls-files 'native/*.cc' 'native/*.h')

format: $(STAMPS)/tools  ## Rewrite the sources in the project's style
	ruff check --fix --quiet . ; ruff format --quiet .
	clang-format -i $$(git ls-files 'native/*.cc' 'native/*.h')

wheel: $(STAMPS)/tools  ## Build the wheel into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:  ## Remove the environment and everything built
	rm -rf $(VENV) build dist

# -- Set-up, each step once

$(STAMPS)/venv:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	mkdir -p $(STAMPS) build
	touch $@

# What building, testing and linting need, as pyproject.toml declares it.
$(STAMPS)/tools: $(STAMPS)/venv pyproject.toml
	$(BIN)/python tools/dev_requirements.py > $(STAMPS)/requirements.txt
	$(PIP) --requirement $(STAMPS)/requirements.txt
	mkdir -p build
	touch $@

$(STAMPS)/package: $(STAMPS)/tools $(SOURCES)
	$(PIP) --no-deps --no-build-isolation .
	touch $@

# The frameworks that examples and type checks need.
TORCH ?= torch==2.13.0
$(STAMPS)/torch: $(STAMPS)/tools
	$(PIP) "$(TORCH)"
	touch $@

# 200 MB less than the one for GPUs. Nothing is compiled against it.
TENSORFLOW ?= tensorflow-cpu==2.21.0
TF_KERAS ?= tf_keras==2.21.0
$(STAMPS)/tensorflow: $(STAMPS)/tools
	$(PIP) "$(TENSORFLOW)"
	$(PIP) --no-deps "$(TF_KERAS)"  # which would bring the other tensorflow, too
	touch $@

# Other libraries, for tests of launchers and for comparison: torch, mpi4py, Open MPI, MPICH, matplotlib.
$(STAMPS)/peers: $(STAMPS)/torch benchmarks/setup_peers.py
	$(BIN)/python -m benchmarks.setup_peers
	touch $@

# Slurm, for the tests of srun: the distribution's packages, where they can be installed.
$(STAMPS)/slurm: $(STAMPS)/venv tools/install_slurm.py
	$(BIN)/python tools/install_slurm.py
	touch $@
