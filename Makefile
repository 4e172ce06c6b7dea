# The front door. Everything sets itself up: a first `make test` on a fresh clone needs only make, g++ and Python.
.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-fast test-cpp test-python test-vm test-dask test-ray test-frameworks faults soak fuzz fuzz-cpp check format tidy bench bench-vm asan tsan wheel-test docs clean
PY := .venv/bin/python
# Without bytecode files every process compiles all it imports, and tests start thousands of them.
export PYTHONDONTWRITEBYTECODE =

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1|\2/' | column -t -s '|'

setup: ## install what development needs (into .venv; system packages when root)
	@tools/setup.sh test

build: setup ## build the core and its tests, and put the extension into rrpc/
	@tools/build.sh release

demo: ## start a server and run the generated client of examples/nearest against it
	@tools/setup.sh demo
	@tools/build.sh python
	@$(PY) examples/nearest/demo.py

test: build ## all tests: C++, Python, and real verbs in virtual machines; about 15 minutes
	@tools/ctest.sh release
	@tools/test_python.sh $(ARGS)
	@$(MAKE) --no-print-directory test-vm

test-fast: build ## the tests that take less than four minutes together
	@tools/ctest.sh fast
	@tools/test_python.sh -m "not slow" -k "not uvloop" $(ARGS)

test-cpp: build ## the C++ tests alone
	@tools/ctest.sh release

test-python: build ## the Python tests alone, with branch coverage; ARGS="-k name" goes to pytest, and "-n 0" is one process
	@tools/test_python.sh $(ARGS)

test-vm: build ## the tests over Soft-RoCE and Soft-iWARP, in virtual machines; SUITES="conformance core" picks some
	@tools/setup.sh vm
	@tools/vm/test.sh $(SUITES)

test-dask: build ## the tests of integrations/dask-rrpc, on clusters of real processes; half a minute
	@tools/integration.sh dask-rrpc

test-ray: build ## the tests of integrations/ray-rrpc, on a cluster of real processes; a minute
	@tools/integration.sh ray-rrpc

test-frameworks: build ## the tests with torch, JAX, pyarrow and pandas, in an environment of their own (2 GB); about two minutes
	@tools/integration.sh frameworks

faults: build ## kill, stop, cut, delay and corrupt at each step of the protocol, 2,000 times; ARGS="--seed 2 --cases 500"
	@$(PY) -m tests.faults --cases 2000 $(ARGS)

soak: build ## mixed load with checksums for MINUTES=60; fails where memory grows by more than 1 %
	@$(PY) -m tests.faults.soak --minutes $(or $(MINUTES),60)

fuzz-cpp: setup ## libFuzzer on the parsers of the core, with clang; SECONDS=60 for each
	@tools/fuzz_cpp.sh $(or $(SECONDS),60)

fuzz: build ## the property tests on random examples; ARGS="--minutes 30 -k json", 5 minutes otherwise
	@$(PY) tools/fuzz.py $(ARGS)

check: setup ## layers, house rules, ruff, mypy, clang-format, clang-tidy
	@tools/check.sh

format: setup ## format everything
	@tools/check.sh --fix

tidy: setup ## clang-tidy alone, on what changed since it last passed
	@tools/build.sh tidy
	@$(PY) tools/tidy.py

bench: ## run the benchmarks; results in bench/out
	@tools/setup.sh bench
	@tools/build.sh python
	@$(PY) bench/run.py $(ARGS)

bench-vm: build ## ours beside perftest, in a virtual machine; ARGS=--quick for a look
	@tools/setup.sh vm
	@tools/vm/bench.sh $(ARGS)

asan: setup ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/build.sh asan
	@tools/ctest.sh asan

tsan: setup ## the C++ tests under ThreadSanitizer
	@tools/build.sh tsan
	@tools/ctest.sh tsan

docs: setup ## the documentation as a site in build/site; any broken link fails. ARGS=serve shows it while you write
	@tools/docs.sh $(ARGS)

wheel-test: setup ## build sdist and wheel, use them in an empty environment
	@tools/wheel_test.sh

clean: ## remove what was built (not .venv, not the guest's kernel in .cache)
	@rm -rf build dist rrpc/*.so .mypy_cache .ruff_cache .pytest_cache
