# The one entry for developers; .ci/run calls the same targets. `make` alone lists them.
#
# A fresh machine needs Rust, Python 3.11 or newer and a C compiler. Everything else is fetched into
# .envs/ (tools/env.py, pinned by hash) and target/ (Cargo.lock).

PYTHON ?= python3
NAME ?= log
ARGS ?=
DOC ?=
SEED ?=
AT ?=
TARGET ?=
FOR ?= 20
# With `dev` the extension has the crates of the Rust tests, compiled once, and their assertions. CI does so.
EXTENSION_PROFILE ?= release

DEV := .envs/dev/bin
VLLM := .envs/vllm/bin
UV := .envs/uv/bin/uv
WHEELS := dist

# A bench that needs an engine names its environment.
BENCH_FILE = $(wildcard bench/dalsegno_bench/*/$(subst -,_,$(NAME)).py)
BENCH_ENV = $(or $(shell sed -n 's/^ENVIRONMENT = "\(.*\)"$$/\1/p' $(BENCH_FILE) 2> /dev/null),dev)

# pyo3 asks an interpreter for its version. Always the same one: a change would rebuild the crate.
export PYO3_PYTHON := $(CURDIR)/$(DEV)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# An engine imports thousands of files, and each of its processes would compile them all again.
unexport PYTHONDONTWRITEBYTECODE

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Targets share environments and the build folder.
.NOTPARALLEL:
.PHONY: help dev env-dev env-vllm env-vllm-next env-vllm-oldest env-vllm-nixl env-sglang env-lmcache env-lmcache-next wheel demo \
	test check lint lint-rust lint-programs lint-python fmt test-rust test-python test-vllm test-vllm-next test-vllm-oldest \
	test-sglang test-lmcache test-lmcache-next test-long sim fuzz fuzz-seeds mutations audit bench docs faultbench \
	far-packages test-far test-far-all clean clean-all need-cargo env-engines build-rust-tests run-rust run-python run-far \
	run-vllm run-vllm-next run-vllm-oldest run-sglang run-lmcache run-lmcache-next fake-cuda

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile

dev: env-dev need-cargo ## set up .envs/dev and build the extension into it
	@echo "make: building the extension"
	@export VIRTUAL_ENV="$(CURDIR)/.envs/dev" PATH="$(CURDIR)/.envs/uv/bin:$$PATH"; \
	$(call quietly,$(DEV)/maturin develop --uv --profile $(EXTENSION_PROFILE) --locked)
	@$(UV) pip install --quiet --no-config --no-deps --python $(DEV)/python --editable bench

env-vllm: wheel ## set up .envs/vllm: real vLLM on the CPU, with our wheels installed
env-sglang: wheel ## the same for SGLang
env-lmcache: wheel ## the same for LMCache
env-vllm env-vllm-next env-vllm-oldest env-vllm-nixl env-sglang env-lmcache env-lmcache-next: env-%: wheel
	@$(PYTHON) tools/env.py $*
	@$(call install-wheel,$*)

wheel: env-dev need-cargo ## build the wheels of dalsegno and dalsegno-bench into dist/
	@echo "make: building the wheels"; rm -rf $(WHEELS)
	@$(call quietly,$(DEV)/maturin build --profile $(EXTENSION_PROFILE) --locked --interpreter $(DEV)/python --out $(WHEELS))
	@$(UV) build --quiet --no-config --wheel --out-dir $(WHEELS) bench
	@ls $(WHEELS)/*.whl

demo: env-vllm ## answer from a long text with a real vLLM, kill it, answer again (DOC=path for your own)
	@$(VLLM)/python -m dalsegno.cli demo vllm $(if $(DOC),--doc "$(DOC)")

test: ## everything that CI runs, and what each part of it cost
	@$(PYTHON) tools/suite.py

check: env-dev need-cargo ## check what differs from main, in less than a minute (ARGS="--base HEAD~3")
	@$(DEV)/python tools/check.py $(ARGS)

test-long: export DALSEGNO_DOSE := long
test-long: lint-programs ## the same tests with the full dose of random inputs, crashes and engine starts
	@$(PYTHON) tools/suite.py run-rust run-python run-far run-vllm run-sglang run-lmcache

lint: lint-rust dev lint-python ## check format, lints, types and the border between Rust and Python

docs: env-dev need-cargo ## build the documentation site into site/: guides, internals, formats, decisions, APIs
	@$(PYTHON) tools/env.py docs
	@$(PYTHON) tools/docs_site.py

fmt: env-dev need-cargo ## format Rust and Python, and apply the safe fixes
	@cargo fmt --all
	@$(DEV)/ruff check --quiet --fix-only .
	@$(DEV)/ruff format --quiet .

test-rust: build-rust-tests run-rust ## run the Rust tests

test-python: dev run-python ## run the Python tests that need no engine

far-packages: ## install the file systems that the tests of the far tier mount: GlusterFS needs root
	@$(PYTHON) tools/far_packages.py

test-far: dev far-packages run-far ## test the far tier on GlusterFS and SeaweedFS, which needs root

test-far-all: dev env-vllm ## test the far tier on all that it runs on, such as CephFS, MinIO and Mooncake: needs root
	@$(PYTHON) tools/far_packages.py --all
	@cargo test --quiet $(RUST_TESTS) --test all --no-run
	@$(call pytest,dev,test-far-all) tests/far --far-all $(ARGS)
	@$(call pytest,vllm,test-far-all) tests/integration/vllm/test_far.py --engine vllm --far-all $(ARGS)

test-vllm: env-vllm run-vllm ## run the tests against real vLLM

test-vllm-next: env-vllm-next run-vllm-next ## the same against a newer vLLM, which CI does not have

test-vllm-oldest: env-vllm-oldest run-vllm-oldest ## the same against the oldest vLLM that is supported

test-sglang: env-sglang run-sglang ## run the tests against real SGLang

test-lmcache: env-lmcache run-lmcache ## run the tests against real LMCache

test-lmcache-next: env-lmcache-next run-lmcache-next ## the same against the next LMCache

sim: need-cargo ## crash 50 histories of a store at every step (SEED=17 one history, AT=123 one step)
	@cargo run --quiet --release --locked -p dalsegno-sim --bin explore -- \
		$(if $(SEED),--seed $(SEED)) $(if $(AT),--at $(AT))

fuzz: need-cargo ## look for inputs that break a decoder, FOR=20 seconds each (TARGET=store for one)
	@$(PYTHON) tools/fuzz.py --seconds $(FOR) $(TARGET)

fuzz-seeds: need-cargo ## write the seeds of the fuzz targets again
	@cargo run --quiet --locked -p dalsegno-fuzz --bin seeds

audit: env-dev need-cargo ## licences, sources and known weaknesses of everything that is depended on
	@$(PYTHON) tools/audit.py

mutations: env-vllm need-cargo ## plant bugs in the store, one by one: sim must find each (ARGS="03 07" for some)
	@$(PYTHON) tools/mutations.py $(ARGS)

bench: $(if $(filter dev,$(BENCH_ENV)),dev,env-$(BENCH_ENV)) ## run one bench: make bench NAME=log ARGS="--help"
	@.envs/$(BENCH_ENV)/bin/python -m dalsegno.cli bench $(NAME) $(ARGS)

faultbench: dev ## inject the same faults into every store that has an environment (ARGS="--probe kill")
	@$(DEV)/python -m dalsegno.cli faultbench $(foreach one,$(wildcard .envs/*/bin/python), \
		$(if $(filter-out $(addprefix .envs/,dev/% uv/% far/% far-all/% vllm-next/% vllm-oldest/% lmcache-next/%),$(one)),--python $(one))) $(ARGS)

clean: ## remove what was built; environments stay
	@rm -rf target site $(WHEELS) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find python bench tests tools -name __pycache__ -prune -exec rm -rf {} +
	@rm -f python/dalsegno/*.so

clean-all: clean ## remove the environments too
	@rm -rf .envs

# Not in the list: steps of the targets above, and of tools/suite.py.

env-dev:
	@$(PYTHON) tools/env.py dev

env-engines:
	@$(PYTHON) tools/env.py vllm sglang lmcache

need-cargo:
	@command -v cargo > /dev/null || { echo "make: Rust is missing; see https://rustup.rs" >&2; exit 1; }

build-rust-tests: env-dev need-cargo
	@# This includes faulty-mount, which Python tests mount.
	@cargo test --quiet $(RUST_TESTS) --no-run

# Takes the place of the CUDA driver in tests.
fake-cuda: need-cargo
	@cargo build --quiet --locked -p dalsegno-fake-cuda

run-python run-vllm run-vllm-next run-vllm-oldest: fake-cuda

run-rust:
	@cargo test --quiet --no-fail-fast $(RUST_TESTS)

run-python:
	@$(call pytest,dev,run-python) --ignore tests/far $(ARGS)

run-far:
	@$(call pytest,dev,run-far) tests/far $(ARGS)

run-vllm run-vllm-next run-vllm-oldest run-sglang run-lmcache run-lmcache-next: run-%:
	@$(call install-wheel,$*)
	@$(call test-engine,$*)

lint-rust: env-dev need-cargo lint-programs
	@$(call if-component,fmt,rustfmt,cargo fmt --all --check)
	@$(call if-component,clippy,clippy,cargo clippy --quiet --workspace --all-targets --locked -- -D warnings)

# They have dependencies of their own, so this checks our crates once more.
lint-programs: env-dev need-cargo
	@cargo check --quiet --locked --manifest-path bench/programs/Cargo.toml --target-dir target

lint-python:
	@$(DEV)/ruff check --quiet .
	@$(DEV)/ruff format --quiet --check .
	@$(DEV)/mypy --strict
	@MYPYPATH=python $(DEV)/stubtest --mypy-config-file pyproject.toml dalsegno._native

RUST_TESTS := --workspace --locked

# $(call install-wheel,NAME) installs our wheels into the environment of an engine.
install-wheel = $(UV) pip install --quiet --no-config --no-deps --reinstall --python .envs/$(1)/bin/python \
	$(WHEELS)/*.whl

# $(call pytest,ENVIRONMENT,NAME) runs pytest, and what failed once more. NAME is that of its cache.
pytest = $(PYTHON) tools/pytest_twice.py $(2) .envs/$(1)/bin/python

# $(call test-engine,NAME) runs an engine's tests and the checks of its route.
# Engines warn as they like, and take minutes to start on a small machine.
define test-engine
$(call pytest,$(1),run-$(1)) --engine $(firstword $(subst -, ,$(1))) -W default --timeout 900 \
	tests/integration tests/contract/test_routes*.py $(ARGS)
endef

# $(call quietly,COMMAND) shows the output of COMMAND only if it fails.
define quietly
said=$$($(1) 2>&1) || { echo "$$said" >&2; exit 1; }
endef

# $(call if-component,SUBCOMMAND,COMPONENT,COMMAND) runs COMMAND if cargo has SUBCOMMAND or rustup can add it.
define if-component
if ! cargo $(1) --version > /dev/null 2>&1 && command -v rustup > /dev/null; then \
	echo "make: adding $(2)"; rustup component add $(2) || true; \
fi; \
if cargo $(1) --version > /dev/null 2>&1; then $(3); \
else echo "make: SKIPPED cargo $(1): this Rust has no $(2), and rustup is not here to add it" >&2; fi
endef
