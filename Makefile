# Two commands do everything on a fresh machine with Python >= 3.11: `make quickstart` and `make test`.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: quickstart quickstart-long evidence test long fast lint resolve clients openenv mlflow vllm vllm-learn faults gpu benchmarks smoke tutorials clean

# A model that trains in minutes on any two cores; quickstart-long is the pretrained SmolLM2-135M.
quickstart: .venv/train
	$(BIN)/python -m recipes.compare recipes/pointer_chase

quickstart-long: .venv/train
	$(BIN)/python -m recipes.compare recipes/quickstart

# What the README's table says, over five seeds, with the control and shuffled rewards: 25 minutes alone on two cores.
evidence: .venv/train
	$(BIN)/python -m benchmarks.evidence --json benchmarks/results/pointer_chase.json

# `make test TIER=all` runs the long tests too, in one start of the suite.
TIER ?= usual
test: .venv/dev
	$(BIN)/python -m pytest -n 3 --dist worksteal --tier $(TIER)

# The tests that `make test` leaves out because they take long.
long: .venv/dev
	$(BIN)/python -m pytest -n 3 --dist worksteal --tier long

# The tests that take little time, for the loop while editing: at most 90 seconds. It prints what it leaves out.
fast: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal --tier fast -q

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

# Whether pip can install every extra, every documented combination and every line of this file, from an empty environment.
resolve:
	$(PYTHON) tests/installs/resolve.py

# Real agent clients play through the gateway, each in an environment of its own below .clients/ (4.3 GB for all of
# them). CLIENTS picks some: make clients CLIENTS="openai strands", or CLIENTS=--only-ci.
clients: .venv/dev
	$(BIN)/python tests/clients/run.py $(CLIENTS)

# The OpenEnv adapter against real servers, whose library is installed below .clients/ (0.5 GB), since it and mcp 2 exclude
# each other.
openenv: .venv/dev
	$(PYTHON) -m venv .clients/openenv
	.clients/openenv/bin/python -m pip install --quiet --disable-pip-version-check 'openenv>=0.10,<0.11'
	$(BIN)/python -m pytest tests/environments/adapters/test_openenv.py

# Tracking against a real MLflow server, whose library is 0.5 GB with what it needs.
mlflow: .venv/dev
	$(INSTALL) --editable '.[train,data,dev,mlflow]'
	$(BIN)/python -m pytest tests/tracking/test_mlflow.py

# The engine against real vLLM servers, in an environment of their own below .clients/ (1 GB): tokens and log-probabilities,
# adapters that change while turns run, and a server that is killed during a run. 15 minutes on two cores.
vllm: .venv/dev .clients/vllm
	SPARRING_TEST_VLLM=.clients/vllm $(BIN)/python -m pytest tests/vllm

# pointer_chase learns through vLLM, and is compared with the same run in one process.
vllm-learn: .venv/dev .clients/vllm
	SPARRING_VLLM=.clients/vllm $(BIN)/python -m benchmarks.vllm

.clients/vllm: .venv/train
	$(BIN)/sparring install vllm --into $@

# Kills at 16 points with 5 seeds and of every process by state, 2,000 simulated runs, a gateway killed at 50 moments, 10,000 episodes
# of random clients and 200 on sockets, 10,000 dialogues, every system call of a save (with
# strace), the real command killed, stopped and resumed: the whole of docs/reliability.md.
faults: .venv/dev
	FAULT_SEEDS=5 $(BIN)/python -m pytest tests/faults tests/supervision tests/training/test_checkpoint_files.py tests/ledger \
		tests/workers tests/runtime/test_cancellable.py tests/e2e/test_stopping.py tests/tracking/test_mlflow_tracker.py tests/engines/test_openai_outages.py \
		tests/gateway/test_behaviours.py tests/sessions/test_dialogues.py

# Everything that needs a GPU, in ten minutes, with the interpreter that has torch for it: PYTHON=python3 make gpu.
gpu:
	$(PYTHON) -m benchmarks.gpu --json benchmarks/results/gpu.json $(GPU)

benchmarks: .venv/benchmarks
	$(BIN)/python -m benchmarks

# docs/tutorial.md as a reader runs it: its files and every command.
tutorials: .venv/train
	$(BIN)/python -m tests.tutorials

# Every benchmark in small, two at a time, in five minutes: whether all sides of each still run.
smoke: .venv/benchmarks
	$(BIN)/python -m benchmarks --smoke

.venv/created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sparring needs Python 3.11 or newer; set PYTHON=/path/to/it")'
	$(PYTHON) -m venv .venv
	touch $@

# torch first and alone: its constraint names the CPU build on machines whose index has one.
.venv/train: .venv/created pyproject.toml constraints.txt
	$(INSTALL) torch
	$(INSTALL) --editable '.[train,data]'
	touch $@

.venv/dev: .venv/train
	$(INSTALL) --editable '.[train,data,dev]'
	touch $@

.venv/benchmarks: .venv/dev
	$(INSTALL) --editable '.[train,data,dev,benchmarks]'
	touch $@

clean:
	rm -rf .venv .clients
