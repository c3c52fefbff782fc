# Everything a contributor types. Each target first sets up what it needs; `make help` lists them.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
STAMP := .venv/.installed
DEV := .venv/.installed-dev
BUILD_INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(shell find csrc -type f)
.DEFAULT_GOAL := help
.PHONY: help setup demo test browser slow clients ray gpu check format native arm dist peers sanitize clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

setup: $(DEV) ## .venv with forerun (editable, native kernels) and the development tools

# Stamps are written last, so an interrupted installation is taken up again.
$(STAMP): $(BUILD_INPUTS)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	  "forerun needs Python 3.11 or newer; try: make PYTHON=/path/to/python3.11")'
	@echo "setting up .venv: forerun with its kernels (a minute or two on two cores)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python dev/install.py --editable '.[serve]'
	@$(BIN)/python -c 'from forerun.model.kernels import native; why = native.reason(); \
	  print("native kernels:", f"no ({why}): {native.REMEDY}" if why else "yes")'
	@touch $@

# The packages of the extra `dev` alone: naming the extra would compile the kernels again.
DEV_EXTRA := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"])
$(DEV): $(STAMP)
	@echo "adding the development tools to .venv, torch among them"
	@$(PIP) torch
	@$(PIP) $$($(BIN)/python -c '$(DEV_EXTRA)')
	@touch $@

demo: $(STAMP) ## fetch the default model and show one prompt, plain and drafted
	@$(BIN)/forerun pull
	@$(BIN)/forerun demo

# Where Python keeps no compiled code, every worker and every program that a test starts would compile all of it again.
unexport PYTHONDONTWRITEBYTECODE
# The engine's tests run without the laboratory: nothing of them may need it.
# Where CI is set, a package that is missing fails the tests that need it.
EXTRAS := $(if $(CI),--all-extras)
TEST := $(BIN)/python -m pytest -q $(EXTRAS) --numprocesses auto --maxprocesses 4 --dist loadfile
test: $(DEV) ## the fast tests, on up to four cores: CPU, offline once the default model is there
	@$(BIN)/forerun pull > /dev/null
	@$(TEST) --without-lab --ignore tests/lab
	@$(TEST) tests/lab

browser: $(DEV) ## the tests of the page, in the system's chromium where there is one
	@if ! { command -v chromium || command -v chromium-browser; } > /dev/null; then \
	  echo "no chromium here: the tests of the page in a browser are skipped"; \
	elif ! $(BIN)/python -c 'import axe_playwright_python' 2> /dev/null && ! $(PIP) axe-playwright-python; then \
	  echo "playwright and axe cannot be installed: the tests of the page in a browser are skipped"; \
	else $(BIN)/python -m pytest -q -m browser tests/server/browser; fi

HERE := not gpu and not net and not browser and not arm and not clients and not ray and not triton
PART := 1/1
slow: $(DEV) ## the long tests, and ten times as many examples of those that draw them; an eighth: make slow PART=1/8
	@$(BIN)/python -m pytest -q $(EXTRAS) --part $(PART) -m "slow and $(HERE)"
	@$(TEST) --part $(PART) --hypothesis-profile many -m "hypothesis and not slow and $(HERE)"

# Environments of their own: they ask for other versions of what .venv has, which they see besides.
# $(call beside,EXTRA) makes build/EXTRA with an extra's packages, one by one: asked for together, pip finds no versions.
EXTRA_OF = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(1)"])
define borrowing
@$(BIN)/python -m venv build/$(1)
@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
  > "$$(build/$(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth"
endef
define beside
$(call borrowing,$(1))
@for need in $$($(BIN)/python -c '$(EXTRA_OF)'); do \
  build/$(1)/bin/python -m pip install -qq --disable-pip-version-check "$$need" || exit 1; done
endef

clients: $(DEV) ## the tests with other people's clients, and schemathesis, in build/clients
	$(call beside,clients)
	@build/clients/bin/python -m pytest -q --all-extras -m clients tests/server

ray: $(DEV) ## the tests of several replicas on Ray, in build/ray
	$(call beside,ray)
	@build/ray/bin/python -m pytest -q --all-extras -m ray tests/server tests/test_deploy.py

# Triton alone: torch, which the extra `gpu` names too, is that of .venv, and a GPU is not asked for.
gpu: $(DEV) ## the GPU's kernels against the CPU's, interpreted, and compiled for five cards, in build/gpu
	$(call borrowing,gpu)
	@build/gpu/bin/python -m pip install -qq --disable-pip-version-check --no-deps --constraint constraints.txt triton
	@build/gpu/bin/python -m pytest -q --all-extras -m "triton and not slow" --numprocesses auto --maxprocesses 4 tests/gpu

check: $(DEV) ## formatting, lint, types, documentation
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m dev.docs --check
	@$(BIN)/python -m dev.readme_table --check

format: $(DEV) ## format, and fix what ruff can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

native: $(STAMP) ## compile the native kernels again, showing the compiler's words
	@$(BIN)/python -m pip install --verbose --no-deps --editable .
	@$(BIN)/python -c 'import sys; from forerun.model.kernels import native; sys.exit(native.reason())'

arm: $(DEV) ## the native tests and the receipt for AArch64 under emulation: make arm ARM=FOLDER (dev/arm/sysroot.sh)
	@$(BIN)/python -m dev.arm $(ARM)

dist: ## wheels and the source distribution of a release in dist/, the wheel tried where no compiler is
	@PYTHON=$(PYTHON) dev/dist.sh

peers: $(STAMP) ## environments of the engines forerun is measured against, for forerun bench --peers
	@$(BIN)/python -m forerun.lab.bench.peers .peers

# An environment of its own, which borrows the packages of .venv but not its editable forerun.
SANITIZE := build/sanitize
SITE := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
SANITIZED = LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libstdc++.so)" \
  ASAN_OPTIONS=detect_leaks=0 $(SANITIZE)/bin/python -m pytest -q -o pythonpath=.
sanitize: $(DEV) ## the native tests under AddressSanitizer and UBSan
	@$(BIN)/python -m venv $(SANITIZE)
	@$(BIN)/python $(SITE) > "$$($(SANITIZE)/bin/python $(SITE))/borrowed.pth"
	@$(SANITIZE)/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
	  --force-reinstall --config-settings=cmake.define.FORERUN_SANITIZE=ON .
	@$(SANITIZED) tests/native tests/weights
	@$(SANITIZED) --flush-denormals -k "not flushes" \
	  tests/native/test_decoder.py tests/native/test_row_law.py tests/native/test_recurrent.py tests/native/test_head.py

clean: ## remove .venv and everything built
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests dev -name __pycache__ -type d -prune -exec rm -rf {} +
