# Bare `make` explains every target. The only step that uses the network is set-up (packages, then data), once.

# Values that may be given on the command line, for example `make reproduce SCALE=smoke DEVICES=cuda:0`.
SCALE ?= laptop
K ?=
M ?=
DEVICES ?=
PYTHON ?=
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OPTIONS = $(if $(K),-K $(K)) $(if $(M),-M $(M)) $(if $(DEVICES),--devices $(DEVICES))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup data reproduce smoke test check report claims clean distclean

# Tables and figures of the paper, one command each: `repro run NAME`.
SYSTEMS := table1 table2 table3 remat breakdown bubble figure2 peers plan schedules
ACCURACY := table4 figure3 table5 depth figure1
SWEEPS := $(SYSTEMS) $(ACCURACY)
.PHONY: throughput memory accuracy smoke-systems smoke-accuracy $(SWEEPS)
# Those that are asked for run in one command (which loads PyTorch once), the first one's.
by_place = $(patsubst memory,table1,$(patsubst throughput,table2 table3,$(patsubst accuracy,$(ACCURACY),$(1))))
ASKED := $(filter $(SWEEPS),$(call by_place,$(MAKECMDGOALS)))

help: ## 0 | this page
	@echo "Reproduction suite of the paper GPipe. Targets, with minutes on two CPU cores (no GPU was measured):"
	@echo
	@awk -F ':.*## | [|] ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %7s min  %s\n", $$1, $$2, $$3 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "The first target that you run also does 'setup'; later ones download nothing."
	@echo
	@echo "Variables, as in: make reproduce SCALE=smoke K=2 M=8"
	@echo "  SCALE=smoke|laptop|gpu  how big a run is (now: $(SCALE))"
	@echo "  K=  M=                  pipeline stages, micro-batches (default: what the scale says); tables and figures take"
	@echo "                          several: make table2 K=\"2 4 8\" M=\"1 4 32\""
	@echo "  DEVICES=cpu|cuda:0      where it runs (default: cpu; with SCALE=gpu cuda:0)"
	@echo "  PYTHON=python3.12       which Python (3.11 or later) makes .venv (default: the first one found)"
	@echo "  TORCH_INDEX=URL         package index to take PyTorch from, for example one of CPU builds"

setup: $(STAMP) data ## 2-15 | create .venv, install the packages, fetch the data (first time only)

data: $(STAMP) ## 1-5 | fetch and build the data sets (first time only)
	@$(BIN)/python -m repro.datasets fetch

# A set that cannot be fetched leaves its half out; the other half runs, and the report says what is missing.
reproduce: $(STAMP) ## 9 | both models through the pipeline and unsplit, side by side; writes the report
	@$(if $(K),$(BIN)/repro reproduce --scale $(SCALE) $(OPTIONS) --check,:)
	@$(BIN)/python -m repro.datasets fetch || true
	@$(BIN)/repro reproduce --scale $(SCALE) $(OPTIONS)

# By claim ...
throughput: table2 table3 ## 12 | Tables 2 and 3: simulated, emulated and measured beside the paper

memory: table1 ## 4 | Table 1: the largest model and its memory

accuracy: $(ACCURACY) ## 34 | Tables 4 and 5, Figures 1 and 3, deep models: both tasks, trained (at small scale)

# ... and by place in the paper.
table1: ## 4 | the largest model that fits, counted, predicted and measured
table2: ## 9 | throughput over K and M
table3: ## 3 | throughput over a slow link
remat: ## 6 | what re-materialization costs and saves
breakdown: ## 1 | where the time of a step goes
bubble: ## 3 | the bubble over K and M, and what M costs
figure2: ## 1 | naive model parallelism against the pipeline, from real traces
peers: ## 13 | this engine beside PyTorch's pipeline, torchgpipe and a bare loop
table4: ## 7 | image sets: transfer, any K gives the same accuracy, larger models
figure3: ## 21 | translation: multilingual models of growing capacity against bilingual ones
table5: ## 5 | translation: larger batches
depth: ## 1 | a Transformer of 64 layers with and without its two cures
figure1: ## 1 | accuracy against size, from the rows of table4 and figure3
plan: ## 1 | the order of repro plan's predictions beside measured steps
schedules: ## 3 | every executable schedule: step time, bubble, live activations, beside the simulator

# Those that train need data; all sets but at the smallest scale. What cannot be fetched is left out and named.
FETCH = $(BIN)/python -m repro.datasets fetch $(if $(filter smoke,$(SCALE)),,--all) || true

$(SWEEPS): $(STAMP)
	@$(if $(and $(filter $(firstword $(ASKED)),$@),$(filter-out depth,$(filter $(ACCURACY),$(ASKED)))),$(FETCH),:)
	@$(if $(filter-out $(firstword $(ASKED)),$@),:,$(BIN)/repro run $(ASKED) --scale $(SCALE) $(OPTIONS))

smoke-systems: ## 3 | throughput, memory and all others without training, as small as they get (what CI runs)
	@$(MAKE) --no-print-directory $(SYSTEMS) SCALE=smoke

smoke-accuracy: ## 4 | 'accuracy', as small as it gets (what CI runs)
	@$(MAKE) --no-print-directory accuracy SCALE=smoke

smoke: $(STAMP) ## 3 | 'reproduce', as small as it gets (what CI runs)
	@$(if $(K),$(BIN)/repro reproduce --scale smoke $(OPTIONS) --check,:)
	@$(BIN)/python -m repro.datasets fetch || true
	@$(BIN)/repro reproduce --scale smoke $(OPTIONS)

report: $(STAMP) ## <1 | tables and figures of everything under results/, from its rows
	@$(BIN)/repro report

claims: $(STAMP) ## <1 | every number of the paper with a verdict (results/**/claims.md); docs/claims.md: those in circulation
	@$(BIN)/repro report --paper-claims
	@$(BIN)/repro report --claims docs/claims.md

test: $(STAMP) ## 12 | all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

check: $(STAMP) ## 1 | format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean: ## 0 | delete caches (keeps .venv, data and results)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis lightning_logs
	find repro tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## 0 | delete .venv and the fetched data as well
	rm -rf $(VENV) data/packaged

# Made again only when pyproject.toml changes.
$(STAMP): pyproject.toml
	@supported='import sys, venv; sys.exit(sys.version_info < (3, 11))'; \
	python=; \
	for candidate in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
	  if "$$candidate" -c "$$supported" >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "No Python 3.11 or later with the venv module was found (tried: $(or $(PYTHON),python3, python3.11 to 3.14, python))." \
	    "Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi; \
	echo "Setting up $(VENV) with $$("$$python" --version), once."; \
	echo "  packages  PyTorch, Lightning, torchvision and tools. On Linux x86-64 the default PyTorch brings the CUDA"; \
	echo "            libraries and the environment takes about 5.5 GB of disk: some 3 to 10 minutes on a fast line."; \
	echo "            Without an NVIDIA GPU a CPU build (about 1.5 GB) is enough: make setup TORCH_INDEX=<index of CPU"; \
	echo "            builds, see PyTorch's installation page>. pip's own settings (PIP_INDEX_URL, PIP_FIND_LINKS) hold."; \
	echo "  data      about 202 MB, after the packages: some 3 minutes."; \
	failed() { \
	  echo "Set-up stopped at: $$1 (the message is above). Run make again to go on. Without a network, fill a folder with" \
	    "wheels on another machine (pip download '.[dev]' 'setuptools>=77' -d wheels), then: PIP_NO_INDEX=1" \
	    "PIP_FIND_LINKS=\$$PWD/wheels make setup" >&2; \
	  exit 1; \
	}; \
	"$$python" -m venv $(VENV) || failed "python -m venv"; \
	pip="$(BIN)/python -m pip --disable-pip-version-check install"; \
	if [ -n "$(TORCH_INDEX)" ]; then \
	  $(BIN)/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*(name for name in project["dependencies"] if name.startswith("torch")), sep="\n")' >$(VENV)/torch.txt; \
	  $$pip --index-url "$(TORCH_INDEX)" -r $(VENV)/torch.txt || failed "PyTorch from TORCH_INDEX=$(TORCH_INDEX)"; \
	fi; \
	$$pip -e '.[dev,peers]' || $$pip -e '.[dev]' || failed "pip install -e .[dev]"; \
	$(BIN)/python -c 'import torch, torchvision; print("PyTorch", torch.__version__, "and torchvision", torchvision.__version__, "are ready.")' \
	  || failed "importing torch and torchvision (two builds that do not belong together? 2.14 goes with 0.29, CPU builds with CPU builds)"; \
	touch $(STAMP)
