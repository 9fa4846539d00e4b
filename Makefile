# SPDX-License-Identifier: MIT
# Thin: scripts/setup.sh fetches, CMake builds, tests/run tests. `make help` lists the targets.
#
#   KVFOLD_LLAMA_DIR=PREFIX  use the libllama installed there       JOBS=N         processes of the build
#   KVFOLD_LLAMA=OFF         the library alone                      PREFIX=DIR     where `make install` puts things
#   CMAKE_ARGS="-D..."       more options for CMake

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
KVFOLD_LLAMA ?= ON
KVFOLD_LLAMA_DIR ?=
export JOBS KVFOLD_LLAMA KVFOLD_LLAMA_DIR

kvfold = build/bin/kvfold
smollm2 = build/models/smollm2-135m-instruct-q4_1.gguf
configure = cmake $(1) -DKVFOLD_LLAMA=$(KVFOLD_LLAMA) $(if $(KVFOLD_LLAMA_DIR),-DKVFOLD_LLAMA_DIR=$(KVFOLD_LLAMA_DIR)) $(CMAKE_ARGS)
compile = cmake --build $(1) -j $(JOBS) $(addprefix --target ,$(2))
quietly = $(1) >$(2).log 2>&1 || { cat $(2).log; exit 1; }

# Emulation is for machines that are not AArch64 themselves.
checked = build build-asan $(if $(filter aarch64,$(shell uname -m)),,build-aarch64)

.PHONY: build
build: ## set-up, then everything: build/bin/kvfold, both models in build/models
	scripts/setup.sh
	$(call configure,--preset default)
	$(call compile,build)

.PHONY: demo
demo: ## set-up for one model, the program, and a run with its report
	scripts/setup.sh demo
	@mkdir -p build
	@$(call quietly,$(call configure,--preset default),build/configure)
	@$(call quietly,$(call compile,build,kvfold_cli),build/compile)
	$(kvfold) run -m $(smollm2) --kv kivi4/kivi4 --temp 0 -n 200 -f docs/demo-prompt.txt

.PHONY: check
check: build ## every test: both models, sanitizers, emulated AArch64, examples, install
ifeq ($(KVFOLD_LLAMA),ON)
	$(call compile,build,models_f32)
endif
	$(call configure,--preset asan)
	$(call compile,build-asan)
ifneq ($(filter build-aarch64,$(checked)),)
	cmake --preset aarch64
	$(call compile,build-aarch64)
endif
	tests/run $(checked)

.PHONY: check-hosts
check-hosts: build ## the host tests again, with a second, newer libllama (not part of check)
	scripts/setup.sh hosts
	$(call compile,build,models_f32)
	cmake --preset next $(CMAKE_ARGS)
	$(call compile,build-next)
	tests/run build-next

.PHONY: bench
bench: build ## attention on packed codes beside libllama's own
	$(kvfold) bench attend

.PHONY: measurements
measurements: build ## docs/MEASUREMENTS.md and build/report, from results in build/results; what is missing there is measured
	scripts/measurements.sh

.PHONY: lint
lint: ## formatting, compiler warnings as errors, static analysis where a tool for it is present
	scripts/lint.sh

.PHONY: format
format: ## brings the sources into the form that lint wants
	scripts/lint.sh --format

.PHONY: install
install: build ## into PREFIX
	cmake --install build --prefix "$(PREFIX)"

.PHONY: clean
clean: ## what was compiled; what was downloaded stays (build/models, build/text, build/deps)
	rm -rf build-*
	@[ ! -e build/CMakeCache.txt ] || cmake --build build --target clean

.PHONY: distclean
distclean: ## everything
	rm -rf build build-*

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16
