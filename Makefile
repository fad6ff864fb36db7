# specd: everything a checkout needs. `make help` lists the targets.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Which llama.cpp to build: cuda, metal or cpu. CUDA needs the compiler and a GPU to build for.
BACKEND ?= $(shell \
	if [ "$$(uname -s)-$$(uname -m)" = Darwin-arm64 ]; then echo metal; \
	elif command -v nvcc >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then echo cuda; \
	else echo cpu; fi)
NO_AMX := -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
STALE := import llama_cpp.llama_cpp as c; \
	raise SystemExit(b'AMX' not in c.llama_print_system_info() and bool(c._lib.ggml_backend_reg_by_name(b'RPC')))
LLAMA := $(VENV)/.llama-$(BACKEND)
INSTALLED := $(VENV)/.specd
INSTALLED_DEV := $(VENV)/.specd-dev

TEST_MODELS := smollm2-135m gemma3-270m qwen2.5-coder-0.5b qwen2.5-coder-1.5b
DEMO_PROMPT := Write a Python function that parses an ISO 8601 date, then a second version that also accepts a time.

.PHONY: help setup demo test lint bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## create .venv and install specd (builds llama.cpp; nothing to do when all is there)

demo: setup  ## fetch the default pair and generate with live statistics
	$(BIN)/specd models pull
	$(BIN)/specd generate --no-stdin --stats --max-tokens 256 --prompt "$(DEMO_PROMPT)"

test: lint  ## lint, types, and the whole test suite: unit tests first, then real models
	$(BIN)/specd models pull $(TEST_MODELS)
	$(BIN)/python -m pytest tests --ignore tests/model --numprocesses auto
	$(BIN)/python -m pytest tests/model

lint: $(INSTALLED_DEV)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)  ## what speculation costs and gains on this machine, on the default pair
	$(BIN)/specd models pull
	$(BIN)/specd bench

clean:  ## remove .venv and everything generated; models stay in their cache
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then echo "specd needs Python 3.11 or newer and found none: install it, or name it with make PYTHON=/path/to/python" >&2; exit 1; fi
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Could not create $(VENV) with $(PYTHON). On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# The image library and the C++ helper library are half of the build and are not loaded by specd.
# A CUDA build bypasses pip's cache, whose key does not know what a wheel was built for.
# AMX is left out: compilers drop the set-up of its tiles as dead code, and the first pass of a model then crashes.
# RPC is one small file, and lets layers lie on other machines. pip's cache may have a wheel of an earlier build, with
# the one or without the other, which goes.
$(LLAMA): | $(BIN)/python
	@command -v cc >/dev/null || { echo "No C compiler found. On Debian and Ubuntu: apt install build-essential; on macOS: xcode-select --install" >&2; exit 1; }
	@echo "Installing llama.cpp for $(BACKEND). The first build takes 2 to 12 minutes with CPU or Metal, up to 30 with CUDA; pip keeps the result."
	@options=$$(mktemp -d); echo 'set(LLAMA_BUILD_COMMON OFF)' > "$$options/llama.cmake"; start=$$(date +%s); \
	flags="-DLLAVA_BUILD=OFF -DGGML_RPC=on -DCMAKE_PROJECT_llama_cpp_INCLUDE=$$options/llama.cmake"; cache=; \
	if echo | cc $(NO_AMX) -E - >/dev/null 2>&1; then flags="$$flags '-DCMAKE_C_FLAGS=$(NO_AMX)' '-DCMAKE_CXX_FLAGS=$(NO_AMX)'"; fi; \
	if [ $(BACKEND) = cuda ]; then flags="$$flags -DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=native"; cache="--no-cache-dir --force-reinstall"; fi; \
	install() { CMAKE_ARGS="$$flags $$CMAKE_ARGS" $(PIP) install --quiet $$cache "$$@" 'llama-cpp-python>=0.3.36,<0.4'; }; \
	install; status=$$?; \
	if [ $$status = 0 ] && $(BIN)/python -c "$(STALE)"; then \
		$(PIP) cache --quiet remove llama_cpp_python; install --force-reinstall --no-deps; status=$$?; fi; \
	rm -rf "$$options"; [ $$status = 0 ] || exit $$status; \
	echo "llama.cpp for $(BACKEND) is in place after $$(( $$(date +%s) - start )) s."
	@rm -f $(VENV)/.llama-*; touch $@

$(INSTALLED): $(LLAMA) pyproject.toml
	@echo "Installing specd."
	@$(PIP) install --quiet --editable .
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	@echo "Installing what the tests need."
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@
