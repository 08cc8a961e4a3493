# The front door. Two commands are all that a newcomer needs: `make demo` and `make test`; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A Boost.Beast unit takes 0.8 GB to compile: jobs = min(processors, available memory / 0.8 GB), at least one.
JOBS ?= $(shell awk -v cpus=$$(nproc) '/MemAvailable/ {n = int($$2 / 800000); print n < 1 ? 1 : n < cpus ? n : cpus}' /proc/meminfo)
PRESET ?= release
SEEDS ?= 20000
# Paths are hashed relative to the checkout, so that a second clone finds what the first one compiled.
export CCACHE_BASEDIR ?= $(CURDIR)

BUILD := cmake --build build/$(PRESET) -j $(JOBS) --target

.PHONY: help setup configure build demo test fast lint format fuzz bench lm-eval memory simulate simulate-mutations ci-full clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PRESET=release|gcc|debug|asan|tsan with build, test, fast; JOBS=$(JOBS)"

setup: ## install what is missing on Debian 12, check the Rust toolchain; quick when nothing is missing
	@scripts/setup.sh

configure: setup
	@cmake --preset $(PRESET) --log-level=NOTICE

build: configure ## build everything: the program, the tests
	@$(BUILD) all

demo: configure ## build the program alone, compress four fine-tunes, serve the family, ask every member
	@$(BUILD) deltafold
	@python3 scripts/demo.py --binary build/$(PRESET)/bin/deltafold

test: build ## build and run all tests
	@ctest --preset $(PRESET) -j $(JOBS) $(CTEST_ARGS)

fast: build ## build and run the tests that are not labelled slow (under a minute)
	@ctest --preset $(PRESET) -j $(JOBS) -LE slow

lint: configure ## format, include direction, sizes, words; clang-tidy over changed files (LINT_ALL=1: over all)
	@scripts/lint.sh build/$(PRESET)

format: setup ## rewrite our sources with clang-format
	@git ls-files -z '*.h' '*.cc' | xargs -0 clang-format-19 -i

fuzz: setup ## build the fuzz targets and run each for FUZZ_SECONDS (30)
	@cmake --preset fuzz --log-level=NOTICE
	@cmake --build build/fuzz -j $(JOBS) --target fuzz_targets
	@scripts/run_fuzz.sh build/fuzz

bench: setup ## build and run the micro-benchmarks
	@cmake --preset bench --log-level=NOTICE
	@cmake --build build/bench -j $(JOBS)
	@scripts/run_bench.sh build/bench

lm-eval: configure ## score the bundled base and a variant with lm-eval over HTTP (installs it into build/lm-eval)
	@$(BUILD) deltafold
	@demo/lm_eval/run.sh build/$(PRESET)/bin/deltafold

memory: configure ## measure the memory promises on a synthetic family of 0.6B shape (5 GB of disk, minutes)
	@$(BUILD) deltafold synthetic_family
	@python3 tests/memory/memory_test.py build/$(PRESET)/bin/deltafold build/$(PRESET)/bin/synthetic_family \
	  build/$(PRESET)/memory --shape qwen3-0.6b

simulate: configure ## store and scheduler in virtual time, under random traffic and faults, from SEEDS (20000) seeds
	@$(BUILD) simulate
	@build/$(PRESET)/bin/simulate --seeds $(SEEDS)

simulate-mutations: configure ## take one guard at a time out of store and scheduler: does the simulation notice?
	@$(BUILD) simulate
	@python3 tests/simulation/mutations.py build/$(PRESET) --seeds $(SEEDS)

ci-full: ## all of CI: .ci/run, then lint over all files, the thread sanitizer, fuzzing, memory, simulation, benchmarks
	@.ci/run --full

clean: ## remove build/
	@rm -rf build
