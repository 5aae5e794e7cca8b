# Two commands do everything on a fresh machine with Python >= 3.11: `make quickstart` and `make test`.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: quickstart quickstart-long evidence test long fast lint resolve wheelhouse locked lock audit sbom release docs browser clients openenv mlflow wandb tinker tinker-client tinker-server tinker-recipes vllm vllm-learn cluster llama-cpp faults gpu benchmarks smoke tutorials clean

# Trains a small model, in minutes on any two cores; quickstart-long trains the pretrained SmolLM2-135M.
quickstart: .venv/train
	$(BIN)/sparring quickstart recipes/pointer_chase

quickstart-long: .venv/train
	$(BIN)/sparring quickstart recipes/quickstart

# Measures the README's table: five seeds, with the control and shuffled rewards. It takes 25 minutes on two idle cores.
evidence: .venv/train
	$(BIN)/python -m benchmarks.evidence --control-steps 800 --json benchmarks/results/pointer_chase.json

# `make test TIER=ci` also runs a case of each long test that is not among the longest, and TIER=all runs everything.
TIER ?= usual
test: .venv/dev
	$(BIN)/python -m pytest -n 3 --dist worksteal --tier $(TIER)

# The tests that `make test` leaves out because they take long.
long: .venv/dev
	$(BIN)/python -m pytest -n 3 --dist worksteal --tier long

# The quickest tests, for use while editing: at most 90 seconds. The command prints what it leaves out.
fast: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal --tier fast -q

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

# The documentation as a site in .site/, with search and a page for each command. A broken link is an error.
docs: .venv/dev
	$(INSTALL) --editable '.[train,data,dev,docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Tests that pip can install every extra, every documented combination and every installation in this file, from an empty
# environment, and that the package without extras installs and runs without an index.
resolve:
	$(PYTHON) tests/installs/resolve.py

# Collects what an installation without the internet needs in wheelhouse/: the package and all its dependencies.
# EXTRAS selects extras: make wheelhouse EXTRAS=train,data,mlflow.
EXTRAS ?= train,data
wheelhouse: .venv/created
	$(BIN)/python -m pip wheel --constraint constraints.txt --wheel-dir wheelhouse '.[$(EXTRAS)]'

# The environment of the tests, from the files of locks/: pip refuses a file whose hash is not in them. TORCH is cpu or cuda.
# `make test` then uses this environment.
TORCH ?= cpu
LOCKED := --require-hashes --no-deps --requirement locks/torch-$(TORCH).txt
locked: .venv/created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(LOCKED) --requirement locks/development.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable '.[train,data,dev]'
	$(BIN)/python -m pip check
	touch .venv/train .venv/dev .venv/benchmarks .venv/cluster

# Solves locks/ again, after a change of constraints.txt, pyproject.toml or locks/tools.in.
lock: .clients/release
	$(PYTHON) tests/installs/lock.py .clients/release/bin/uv

# Looks for known vulnerabilities in everything that locks/ lists. Prints SKIPPED and why if the index of vulnerabilities does
# not answer.
audit: .clients/release
	$(PYTHON) tests/installs/audit.py .clients/release/bin/pip-audit

# What the images contain, as a CycloneDX document in dist/, validated against its schema.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
sbom: .clients/release
	mkdir -p dist
	cat locks/torch-$(TORCH).txt locks/image.txt | .clients/release/bin/cyclonedx-py requirements - \
		--pyproject pyproject.toml --mc-type application --output-reproducible --spec-version 1.6 --validate \
		--output-file dist/sparring-$(VERSION)-$(TORCH).cdx.json

# The files of a release in dist/: the source distribution, the wheel that is built from it, the SBOM of each image, and the
# sha256 of all of them.
release: .clients/release
	rm -rf dist build
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) .clients/release/bin/python -m build --no-isolation --outdir dist
	$(MAKE) sbom TORCH=cpu
	$(MAKE) sbom TORCH=cuda
	cd dist && sha256sum * > SHA256SUMS

.clients/release: locks/tools.txt
	$(PYTHON) -m venv --clear $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement locks/tools.txt
	touch $@

# Runs episodes of real agent clients through the gateway. Each client is installed in a separate virtual environment below
# .clients/ (4.3 GB in total). CLIENTS selects clients: make clients CLIENTS="openai strands", or CLIENTS=--only-ci.
clients: .venv/dev
	$(BIN)/python tests/clients/run.py $(CLIENTS)

# Tests the OpenEnv adapter with real servers. Their library conflicts with mcp 2, so it is installed below .clients/
# (0.5 GB).
openenv: .venv/dev
	$(PYTHON) -m venv .clients/openenv
	.clients/openenv/bin/python -m pip install --quiet --disable-pip-version-check 'openenv>=0.10,<0.11'
	$(BIN)/python -m pytest tests/environments/adapters/test_openenv.py

# Tests tracking with a real MLflow server, and what is redacted for each service. The libraries of both services take 0.6 GB,
# including dependencies.
mlflow: .venv/dev
	$(INSTALL) --editable '.[train,data,dev,mlflow,wandb]'
	$(BIN)/python -m pytest tests/tracking/test_mlflow.py tests/tracking/test_redacted.py

# Tests tracking with the library of Weights & Biases, offline and without its server.
wandb: .venv/dev
	$(INSTALL) --editable '.[train,data,dev,mlflow,wandb]'
	$(BIN)/python -m pytest tests/tracking/test_wandb.py

# `sparring serve --tinker` with three versions of its client, each in an environment of its own below .clients/ (1 GB each). 3
# minutes on two cores once they are installed.
TINKER := 0.16.1 0.25.0 0.38.0
tinker-server: .venv/dev $(TINKER:%=.clients/tinker-%/created)
	SPARRING_TEST_TINKER_CLIENTS=$$(echo $(TINKER:%=$(CURDIR)/.clients/tinker-%/bin/python) | tr ' ' :) \
		$(BIN)/python -m pytest --tier all tests/serving/tinker

.clients/tinker-%/created:
	$(PYTHON) -m venv .clients/tinker-$*
	.clients/tinker-$*/bin/python -m pip install --quiet --disable-pip-version-check 'tinker==$*' 'torch>=2.8'
	touch $@

# Two recipes of tinker-cookbook against `sparring serve --tinker`, without the internet. 3 minutes on two cores once they are
# installed. tml-renderers, which needs a newer Python, renders only models of Thinking Machines, so it is left out.
tinker-recipes: .venv/dev .clients/tinker-cookbook/created
	$(BIN)/python -m tests.serving.tinker.recipes .clients/tinker-cookbook/bin/python

COOKBOOK := 'tinker==0.38.0' 'torch>=2.10' aiohttp blobfile chz cloudpickle datasets math-verify pillow pylatexenc pyrage rich \
	safetensors sympy termcolor 'tiktoken>=0.12' tqdm
.clients/tinker-cookbook/created:
	$(PYTHON) -m venv .clients/tinker-cookbook
	.clients/tinker-cookbook/bin/python -m pip install --quiet --disable-pip-version-check $(COOKBOOK)
	.clients/tinker-cookbook/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'tinker-cookbook==0.6.1'
	touch $@

# The engine against real vLLM servers, in an environment of their own below .clients/ (3 GB): tokens and log-probabilities,
# adapters that change while turns run, and a server that is killed during a run. 15 minutes on two cores.
vllm: .venv/dev .clients/vllm
	SPARRING_TEST_VLLM=.clients/vllm $(BIN)/python -m pytest tests/vllm

# A real Chromium opens the pages of runs (Debian: apt-get install chromium).
browser: .venv/dev
	SPARRING_TEST_BROWSER=1 $(BIN)/python -m pytest --tier all tests/report/test_browser.py tests/web/test_browser.py

# pointer_chase learns through vLLM, and is compared with the same run in one process.
vllm-learn: .venv/dev .clients/vllm
	SPARRING_VLLM=.clients/vllm $(BIN)/python -m benchmarks.vllm

# The learner and the engine of Tinker services against `sparring serve --tinker`, except for the long tests.
tinker-client: .venv/tinker
	$(BIN)/python -m pytest --tier usual tests/tinker

# The learner and the engine on a real Tinker server, SkyRL with JAX on the CPU, in an environment of its own below .clients/
# (6 GB with torch for GPUs, Python 3.12), with the version of the package `tinker` that it pins; and the same on our own server. 20
# minutes on two cores that do other things too.
PYTHON312 ?= $(shell command -v python3.12)
tinker: .venv/tinker .clients/skyrl/created .clients/tinker-sdk-0.25.0
	SPARRING_TEST_TINKER=.clients/skyrl SPARRING_TEST_TINKER_SDKS=.clients/tinker-sdk-0.25.0 \
		$(BIN)/python -m pytest --tier all tests/tinker

# The server imports aiohttp, which its extra does not name. torch is first, so that its build is that of the index.
.clients/skyrl/created:
	$(PYTHON312) -m venv .clients/skyrl
	.clients/skyrl/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
	.clients/skyrl/bin/python -m pip install --quiet --disable-pip-version-check 'skyrl[tinker,jax]==0.4.0' 'torch==2.13.0' aiohttp
	touch $@

.clients/tinker-sdk-%: .venv/tinker
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ tinker==$*

# Trains on a Ray cluster of this machine, with real vLLM servers, and kills a worker, a rank and a server meanwhile. At most 15
# minutes on two cores.
cluster: .venv/cluster .clients/vllm
	SPARRING_TEST_CLUSTER=1 $(BIN)/python -m pytest tests/cluster
	SPARRING_VLLM=.clients/vllm $(BIN)/python -m benchmarks.cluster

# Exported GGUF files in llama.cpp, in an environment of its own below .clients/. pip compiles llama.cpp, which needs a C++
# compiler and takes 15 minutes on two cores.
llama-cpp: .venv/dev .clients/llama-cpp/created
	SPARRING_TEST_LLAMA_CPP=.clients/llama-cpp $(BIN)/python -m pytest --tier all tests/serving/test_gguf.py

.clients/llama-cpp/created:
	$(PYTHON) -m venv .clients/llama-cpp
	.clients/llama-cpp/bin/python -m pip install --quiet --disable-pip-version-check 'llama-cpp-python>=0.3.36,<0.4'
	touch $@

.clients/vllm: .venv/train
	$(BIN)/sparring install vllm --into $@

# Runs all tests of docs/reliability.md: kills at 16 points with 5 seeds, kills of every process in each of its states, 2,000
# simulated runs, a gateway that is killed at 50 moments, 10,000 episodes of random clients and 200 over sockets, 10,000
# dialogues, every system call of a save (with strace), and the real command killed, stopped and resumed.
faults: .venv/dev
	FAULT_SEEDS=5 $(BIN)/python -m pytest tests/faults tests/copies tests/supervision tests/training/test_checkpoint_files.py tests/ledger \
		tests/workers tests/runtime/test_cancellable.py tests/e2e/test_stopping.py tests/tracking/test_mlflow_tracker.py tests/engines/test_openai_outages.py \
		tests/gateway/test_behaviours.py tests/sessions/test_dialogues.py

# Measures everything that needs a GPU, in ten minutes. PYTHON must be an interpreter whose torch supports the GPU:
# PYTHON=python3 make gpu.
gpu:
	$(PYTHON) -m benchmarks.gpu --json benchmarks/results/gpu.json $(GPU)

benchmarks: .venv/benchmarks
	$(BIN)/python -m benchmarks

# Runs docs/tutorial*.md as a reader does: creates their files and runs every command. Each takes at most 3 minutes on two cores.
tutorials: .venv/dev
	$(BIN)/python -m tests.tutorials

# Runs a small version of every benchmark, two at a time, in five minutes, to test that all sides of each still run.
smoke: .venv/benchmarks
	$(BIN)/python -m benchmarks --smoke

.venv/created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sparring needs Python 3.11 or newer; set PYTHON=/path/to/it")'
	$(PYTHON) -m venv .venv
	touch $@

# Install torch first and separately: its constraint selects the CPU build on machines whose package index has one. The pip of
# Python 3.11 takes twice as long as a new one; if there is none, it also works.
.venv/train: .venv/created pyproject.toml constraints.txt
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25'
	$(INSTALL) torch
	$(INSTALL) --editable '.[train,data]'
	touch $@

.venv/dev: .venv/train
	$(INSTALL) --editable '.[train,data,dev]'
	touch $@

.venv/benchmarks: .venv/dev
	$(INSTALL) --editable '.[train,data,dev,benchmarks]'
	touch $@

.venv/tinker: .venv/dev
	$(INSTALL) --editable '.[train,data,dev,tinker]'
	touch $@

.venv/cluster: .venv/dev
	$(INSTALL) --editable '.[train,data,dev,cluster]'
	touch $@

clean:
	rm -rf .venv .clients
