# SPDX-License-Identifier: Apache-2.0
# Every target makes the environment it needs, and reuses it until what determines it changes.

PYTHON ?= python3
PYTHONS ?= 3.10 3.11 3.12 3.13
# More arguments for pytest or the benchmark: make test ARGS="-k fork"
ARGS ?=
# Tests that run at once, one per core; make test JOBS=0 for one after the other
JOBS ?= auto
# How often a test that failed is run again before it counts as failed; its name is printed either way
RERUNS ?= 0
# Environments stay for the next run; KEEP= removes each after its tests, where the disk is small
KEEP ?= yes
# Frameworks to measure beside, each in an environment of its own; PEERS= for none
PEERS ?= torch paddle jax mindspore

ENVIRONMENT = $(PYTHON) tools/environment.py
# $(call in,NAME) goes before a program of that environment.
in = @environment=$$($(ENVIRONMENT) $(1)) && set -x && $$environment/bin
# $(call done,NAMES) comes after the last program of these environments.
done = $(if $(KEEP),,@cd .venvs && rm -rf $(1))
PYTEST = python -m pytest --timeout=900 -n $(JOBS) --dist worksteal --reruns $(RERUNS)
# Without repetitions: for each further environment, after `make test`
BRIEF = -m "not stress and not again" --hypothesis-profile=brief
# What proves a wheel where all tests run on the same Python anyway: `make test` runs them on that
# of PYTHON, test-lowest on 3.10. And with what differs between Pythons, where they run on a close
# relative: 3.13 for 3.12.
PROOF = tests/test_install.py tests/test_exports.py tests/exporters tests/recording/test_spans.py
PYTHON_PROOF = $(PROOF) tests/recording/test_python_calls.py tests/recording/test_threads_and_async.py
# And a wheel without C, whose recorder's tests are marked `again`.
PURE_PROOF = tests/recording/test_endings.py tests/recording/test_processes.py tests/unit/analysis tests/unit/assemble tests/unit/model
PROVED = 3.10 3.12 $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
C_FILES = $$(find native src tests/native -name '*.[ch]' -o -name '*.cpp' 2>/dev/null)

.DEFAULT_GOAL := help

.PHONY: help
help:  ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# As many of these at once as make is told with -j; each is made by what needs it, too.
ENVIRONMENTS = $(addprefix environment-,torch mindspore paddle jax ascend consumers check test pure)
ENVIRONMENTS_OF_PYTHONS = $(PYTHONS:%=environment-wheel-%) environment-lowest-3.10
.PHONY: environments
environments: $(ENVIRONMENTS) $(ENVIRONMENTS_OF_PYTHONS)  ## Make all that check, test and test-all need, with -j2 two at once

.PHONY: $(ENVIRONMENTS) $(ENVIRONMENTS_OF_PYTHONS)
$(ENVIRONMENTS): environment-%:
	@$(ENVIRONMENT) $* >/dev/null
$(ENVIRONMENTS_OF_PYTHONS): environment-%:
	@if $(ENVIRONMENT) --find $(lastword $(subst -, ,$*)) >/dev/null 2>&1; then \
		$(ENVIRONMENT) $(subst -, --python ,$*) >/dev/null; \
	fi

.PHONY: demo
demo:  ## Install strobe into .venv and profile a small training run
	$(call in,demo)/python examples/train_numpy.py

.PHONY: test
test:  ## Run the core test suite
	$(call in,test)/$(PYTEST) tests $(ARGS)
	$(call done,test)

.PHONY: check
check:  ## Check format, lint, types, spelling and layers, as CI does
	$(call in,check)/ruff format --check .
	$(call in,check)/ruff check .
	$(call in,check)/mypy --strict src
	$(call in,check)/clang-format --dry-run -Werror $(C_FILES)
	$(call in,check)/codespell
	$(call in,check)/$(PYTEST) -n 0 -q tests/test_layers.py
	$(call done,check)

.PHONY: format
format:  ## Format Python and C, and fix what the linter can fix
	$(call in,check)/ruff format .
	$(call in,check)/ruff check --fix .
	$(call in,check)/clang-format -i $(C_FILES)

.PHONY: docs
docs:  ## Write docs/cli.md and docs/tables.md anew
	$(call in,test)/python tools/make_docs.py

.PHONY: bench
bench:  ## Measure ourselves beside PEERS in one run and print one table
	@peers=""; for peer in $(PEERS); do \
		environment=$$($(ENVIRONMENT) bench-$$peer) || exit 1; \
		peers="$$peers --peer $$peer=$$environment/bin/python"; \
	done; \
	if $(ENVIRONMENT) --find 3.12 >/dev/null 2>&1; then \
		peers="$$peers --peer 3.12=$$($(ENVIRONMENT) bench --python 3.12)/bin/python"; \
	fi; \
	environment=$$($(ENVIRONMENT) bench) && set -x && \
	$$environment/bin/python benchmarks/run.py $$peers $(ARGS)

.PHONY: test-all
test-all: test-pythons test-pure test-lowest test-consumers test-torch test-jax test-paddle test-mindspore  ## Test all that can be tested on this machine

.PHONY: test-pythons
test-pythons: $(PYTHONS:%=test-python-%)  ## Test the wheel on each Python found, named as PYTHONS="3.11 3.12"
	@for version in $(PYTHONS); do \
		$(ENVIRONMENT) --find $$version >/dev/null 2>&1 || missing="$$missing $$version"; \
	done; \
	if [ -n "$$missing" ]; then echo "test-pythons: not installed, so skipped:$$missing"; fi

.PHONY: $(PYTHONS:%=test-python-%)
$(PYTHONS:%=test-python-%): test-python-%:
	@if $(ENVIRONMENT) --find $* >/dev/null 2>&1; then \
		environment=$$($(ENVIRONMENT) wheel --python $*) && set -x && \
		STROBE_BUILD=native $$environment/bin/$(PYTEST) \
			$(BRIEF) $(if $(filter $*,$(PROVED)),$(PYTHON_PROOF),tests) $(ARGS); \
	else \
		echo "test-python-$*: python$* is not installed: skipped"; \
	fi
	$(call done,wheel-$*)

.PHONY: test-pure
test-pure:  ## Test the wheel that has no C in it
	@environment=$$($(ENVIRONMENT) pure) && set -x && \
	STROBE_BUILD=pure $$environment/bin/$(PYTEST) --hypothesis-profile=brief \
		$(PROOF) $(PURE_PROOF) $(ARGS)
	$(call done,pure)

.PHONY: test-lowest
test-lowest:  ## Test with the oldest libraries that pyproject.toml allows
	@if $(ENVIRONMENT) --find 3.10 >/dev/null 2>&1; then \
		environment=$$($(ENVIRONMENT) lowest --python 3.10) && set -x && \
		STROBE_BUILD=native $$environment/bin/$(PYTEST) $(BRIEF) tests $(ARGS); \
	else \
		echo "test-lowest: python3.10 is not installed: skipped"; \
	fi
	$(call done,lowest-3.10)

.PHONY: test-consumers
test-consumers: tests/page/node_modules  ## Open what we export in the tools it is for
	$(call in,consumers)/$(PYTEST) $(BRIEF) tests/exporters $(ARGS)
	$(call done,consumers)

# What drives the browser that opens the Perfetto page; the tests say so where it cannot be had.
tests/page/node_modules: tests/page/package-lock.json
	@npm ci --prefix tests/page --no-audit --no-fund --silent && touch $@ || \
		echo "test-consumers: npm is absent or could not fetch playwright-core: no browser is driven"

# Tests run at once, one per core.
test-torch test-jax test-paddle test-mindspore: export OMP_NUM_THREADS = 1

.PHONY: test-torch
test-torch:  ## Test what needs PyTorch
	$(call in,torch)/$(PYTEST) -m torch tests/frameworks $(ARGS)
	$(call done,torch)

.PHONY: test-jax
test-jax:  ## Test what needs JAX
	$(call in,jax)/$(PYTEST) -m jax tests/frameworks $(ARGS)
	$(call done,jax)

.PHONY: test-paddle
test-paddle:  ## Test what needs PaddlePaddle
	$(call in,paddle)/$(PYTEST) -m paddle tests/frameworks $(ARGS)
	$(call done,paddle)

.PHONY: test-mindspore
test-mindspore:  ## Test what needs MindSpore, and open its files in the tools they are for
	@environment=$$($(ENVIRONMENT) mindspore) && tools=$$($(ENVIRONMENT) ascend) && set -x && \
	STROBE_ASCEND_TOOLS=$$tools/bin $$environment/bin/$(PYTEST) -m mindspore tests/frameworks $(ARGS)
	$(call done,mindspore ascend)

.PHONY: stress
stress: stress-kill stress-asan stress-tsan stress-valgrind stress-aarch64  ## All that takes long: kills, sanitizers, valgrind, aarch64

.PHONY: stress-kill
stress-kill:  ## Kill recording programs hundreds of times
	$(call in,test)/$(PYTEST) -m stress tests $(ARGS)

.PHONY: stress-asan
stress-asan:  ## Run the C tests under AddressSanitizer and UndefinedBehaviorSanitizer
	tools/native_tests.sh asan

.PHONY: stress-tsan
stress-tsan:  ## Run the C tests under ThreadSanitizer
	tools/native_tests.sh tsan

.PHONY: stress-valgrind
stress-valgrind:  ## Run the C tests under valgrind
	tools/native_tests.sh valgrind

.PHONY: stress-aarch64
stress-aarch64:  ## Cross-compile the C tests for aarch64 and run them under qemu
	tools/native_tests.sh aarch64

.PHONY: clean
clean:  ## Remove environments, builds and caches; recordings stay
	rm -rf .venv .venvs build dist src/strobe.egg-info tests/page/node_modules
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests tools benchmarks examples build_backend \
		\( -name __pycache__ -o -name '*.so' \) -prune -exec rm -rf {} + 2>/dev/null || true
