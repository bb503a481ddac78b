# A virtual environment of the project's own, made again when what it holds has changed.
#
#   make demo                  a first comparison on data that come with scikit-learn; no network, under a minute
#   make test                  lint, and all tests but the slow ones
#   make lint                  style, format, types
#   make test-all              all tests, one shard a file; a second call goes on where the first ended
#   make test-all SHARD=2/5    the second fifth of the shards
#   make deps-browser          Chromium, in which the report is tested; nothing if there is one
#   make docs                  the documentation as a site, in site/
#   make bench                 how fast a round is, beside Flower, pfl and FedJAX (benchmarks/RESULTS.md); 15 minutes
#   make clean                 remove what the above have made, runs excepted

SHELL   := /bin/bash
PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
WORKERS ?= logical
SHARD   ?= 1/1
OUT     ?= runs/demo
DEMO    ?= run --out $(OUT) --force
BENCH   ?= --minutes 15

INSTALLED := $(VENV)/.installed
PYTEST    := $(BIN)/python -m pytest -q -W error -n $(WORKERS) --maxprocesses 8 --dist loadgroup

.PHONY: help demo test lint test-all docs bench clean deps-browser

help:
	@sed -n 's/^#   //p' Makefile

$(INSTALLED)-%: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

demo: $(INSTALLED)-demo
	$(BIN)/fedquilt $(DEMO)

# With apt, as root or by sudo.
deps-browser:
	@command -v chromium chromium-browser google-chrome > /dev/null || { \
		command -v apt-get > /dev/null || { echo "there is no apt-get here: install Chromium by hand"; exit 1; }; \
		root=$$( (( EUID )) && echo sudo || true ); \
		$$root apt-get update -qq && $$root env DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends chromium > /dev/null; \
	}

lint: $(INSTALLED)-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

test: lint
	$(PYTEST)

# A shard is one test file.  Its stamp is as old as the shard's start, and counts while nothing that
# the tests depend on is newer: so a call after an edit runs them again, one after an interruption does not.
test-all: $(INSTALLED)-test-all
	@trap 'exit 130' INT; mkdir -p .test-all; \
	[[ "$(SHARD)" =~ ^([1-9][0-9]*)/([1-9][0-9]*)$$ ]] && part=$${BASH_REMATCH[1]} parts=$${BASH_REMATCH[2]} \
		&& (( part <= parts )) || { echo "SHARD is i/n, such as 2/5, not $(SHARD)"; exit 2; }; \
	files=($$(find tests -name 'test_*.py' | LC_ALL=C sort | awk "NR % $$parts == $$part % $$parts")); \
	failed=(); at=0; \
	for file in "$${files[@]}"; do \
		at=$$((at + 1)); name=$${file//\//.}; stamp=.test-all/$$name; line="[$$at/$${#files[@]}] $$file"; \
		if [[ -e $$stamp && -z $$(find fedquilt tests docs README.md pyproject.toml constraints.txt -type f \
				-not -path '*/__pycache__/*' -newer $$stamp -print -quit) ]]; then \
			echo "$$line: passed before"; continue; \
		fi; \
		rm -f $$stamp; touch $$stamp.started; began=$$SECONDS; \
		if $(PYTEST) -m '' $$file > $$stamp.log 2>&1; then \
			mv $$stamp.started $$stamp; echo "$$line: passed in $$((SECONDS - began)) s"; \
		else \
			cat $$stamp.log; echo "$$line: FAILED after $$((SECONDS - began)) s"; failed+=($$file); \
		fi; \
	done; \
	if (( $${#failed[@]} )); then echo "failed: $${failed[*]}"; exit 1; fi; \
	echo "all $${#files[@]} shards of $(SHARD) have passed"

docs: $(INSTALLED)-docs
	$(BIN)/python -m mkdocs build --strict

# The peers need other versions of some packages than the tests do: an environment of their own.
$(VENV)-bench/.installed: pyproject.toml benchmarks/constraints.txt
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python -m pip install --quiet --disable-pip-version-check -c benchmarks/constraints.txt -e '.[bench]'
	@touch $@

bench: $(VENV)-bench/.installed
	$(VENV)-bench/bin/python benchmarks/bench.py $(BENCH)

clean:
	rm -rf $(VENV) $(VENV)-bench build dist site ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .test-all
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
