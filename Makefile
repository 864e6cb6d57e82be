# SPDX-License-Identifier: Apache-2.0
# A thin front: the build itself is in CMakeLists.txt.
BUILD ?= build
PREFIX ?= /usr/local
CI ?=
LAP_WERROR ?= $(if $(filter-out false 0,$(CI)),ON,OFF)
CMAKE_ARGS ?=
# More tests at a time than cores: many sleep until something has been late for long enough.
CTEST_ARGS ?= -j$(shell expr $$(nproc) + 3)
BENCH_ARGS ?=
MUTANTS_ARGS ?=
FUZZ_SECONDS ?= 60
LINT_ARGS ?=
FAULTS_ARGS ?= --count 1000

configure = cmake -S . -B $(1) -G Ninja -DLAP_WERROR=$(LAP_WERROR) $(2) $(CMAKE_ARGS)
run_tests = sh scripts/run_tests.sh $(1) $(CTEST_ARGS)

.PHONY: all demo check test test-asan test-tsan mutants test-gpu sanitize-gpu bench-gpu fuzz faults lint format install wheel bench clean help setup setup-test setup-lint

all: setup
	@$(call configure,$(BUILD))
	@cmake --build $(BUILD)

setup:
	@sh scripts/setup.sh build

setup-test setup-lint: setup-%:
	@sh scripts/setup.sh $*

demo: all
	@bash scripts/demo.sh $(BUILD)

check: setup-test all
	@sh scripts/check.sh $(BUILD) $(CTEST_ARGS)

# All tests may take twice what they take on two cores of 2023, which is some 20 minutes of a processor.
test: setup-test all
	@sh scripts/run_tests.sh --budget 2800 $(BUILD) $(CTEST_ARGS)

test-asan test-tsan: test-%: setup-test
	@$(call configure,build-$*,-DCMAKE_BUILD_TYPE=Debug -DLAP_SANITIZE=$(if $(filter asan,$*),address,thread))
	@cmake --build build-$*
	@$(call run_tests,build-$*)

mutants: setup-test
	@bash scripts/mutants.sh $(MUTANTS_ARGS)

test-gpu sanitize-gpu: setup-test
	@$(call configure,build-gpu,-DLAP_TEST_GPU=ON)
	@bash scripts/test_gpu.sh build-gpu $@

fuzz: setup
	@sh scripts/setup.sh fuzz
	@$(call configure,build-fuzz,-DCMAKE_C_COMPILER=clang -DLAP_FUZZ=ON -DLAP_BUILD_TESTS=OFF -DLAP_BUILD_EXAMPLES=OFF \
	    -DLAP_MPI=OFF -DLAP_CUDA=OFF)
	@cmake --build build-fuzz
	@bash scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS)

faults: setup-test all
	@python3 scripts/faults.py --lap $(BUILD)/faults/lap --mpirun "mpirun --bind-to none --oversubscribe" $(FAULTS_ARGS)

lint: setup setup-lint
	@$(call configure,$(BUILD))
	@cmake --build $(BUILD) --target lap_commit
	@bash scripts/lint.sh $(BUILD) $(LINT_ARGS)

format: setup-lint
	@bash scripts/lint.sh --fix-format

install: all
	@cmake --install $(BUILD) --prefix $(abspath $(PREFIX))
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then ldconfig; fi

wheel: all
	@LAPSTRAKE_LIBRARY=$(BUILD)/liblap.so python3 python/wheel_backend.py $(BUILD)/wheel

bench: all
	@$(BUILD)/lap bench ag 2048 4096 2048 --ranks 2 --link ratio:0.4
	@$(BUILD)/lap bench rs 2048 2048 4096 --ranks 2 --link ratio:0.4

bench-gpu: all
	@python3 bench/gpu.py --lap $(BUILD)/lap --json $(BUILD)/bench-gpu.jsonl $(BENCH_ARGS)

clean:
	@rm -rf $(BUILD) build-asan build-tsan build-gpu build-mutants build-fuzz

help:
	@echo "make            build the library and the command lap, in $(BUILD)/"
	@echo "make demo       trains a small GPT on text on 4 CPU ranks with overlap and without; every method; a timeline"
	@echo "make check      the quick tests, under a minute on two cores"
	@echo "make test       every test; test-asan and test-tsan run them under sanitizers"
	@echo "make test-gpu   the tests that need an NVIDIA GPU; sanitize-gpu: under compute-sanitizer"
	@echo "make mutants    plausible mistakes: which of them the tests notice; MUTANTS_ARGS=--help"
	@echo "make bench      the measurements of docs/performance.md"
	@echo "make bench-gpu  the same operators beside PyTorch's and cuBLASMp's on an NVIDIA GPU; BENCH_ARGS=--help"
	@echo "make fuzz       random input for every parser, FUZZ_SECONDS ($(FUZZ_SECONDS)) each; needs clang"
	@echo "make faults     random faults in a random rank: kills, stops, no memory, ...; FAULTS_ARGS=--help"
	@echo "make lint       format, clang-tidy, cppcheck, pyflakes; LINT_ARGS=--quick leaves out the slow checks; make format rewrites the files"
	@echo "make install    into PREFIX ($(PREFIX)), below DESTDIR if it is set"
	@echo "make wheel      the Python package lapstrake with its liblap inside, in $(BUILD)/wheel"
	@echo "make clean      removes what was built"
