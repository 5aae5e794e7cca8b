"""A training with its engine and its learner in processes of their own is the training in one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import sparring
from sparring.config import read_place
from sparring.training import checkpoints
from sparring.training.checkpoint_files import find_newest
from tests.faults.recipe import tiny

TINY = Path(__file__).parents[1] / "faults" / "recipe"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The tiny recipe without the settings that only the engine in this process reads."""
    shutil.copytree(TINY, tmp_path / "recipe", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    path = tmp_path / "recipe" / "recipe.toml"
    # In a folder, so that a run with both elsewhere loads no weights.
    model, tokenizer = tiny.build(0)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    text = path.read_text("utf-8").partition("[engine]")[0]
    path.write_text(text.replace("tiny:build", str(tmp_path / "model")), "utf-8")
    return path


@contextmanager
def served(*command: str, key: str = "") -> Iterator[str]:
    """Start a `sparring` command that prints its address as JSON; yields the address."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SPARRING_API_KEY": key}
    full = [sys.executable, "-m", "sparring", *command, "--port", "0", "--json"]
    with subprocess.Popen(full, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            text = ""
            for line in process.stdout:
                text += line
                if "}" in line:
                    break
            yield json.loads(text)["base_url"]
        finally:
            process.kill()


def trained(recipe: Path, runs: Path, *overrides: str) -> tuple[str, list[dict[str, float]]]:
    """Train, and return the fingerprint of the last weights and the losses of all steps."""
    with sparring.MultiTurnRLTrainer(
        recipe, overrides=[f"run.runs_dir={runs}", *overrides], check=False, quiet=True
    ) as trainer:
        result = trainer.train()
        assert result is not None
    rows = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text("utf-8").splitlines()]
    losses = [row["metrics"]["training/loss"] for row in rows if "training/loss" in row["metrics"]]
    return checkpoints.read_weights(find_newest(result.run / "checkpoints")).fingerprint, losses


def test_it_reaches_the_same_weights_bit_for_bit(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNER_KEY", "secret")
    here, losses = trained(recipe, tmp_path / "here", "engine.kv_cache_tokens=2048")
    with ExitStack() as processes:
        engine = processes.enter_context(served("engine", str(recipe), "engine.kv_cache_tokens=2048"))
        learner = processes.enter_context(served("learner", str(recipe), key="secret"))
        place = tmp_path / "place.toml"
        place.write_text(
            f"[engine]\ntype = 'remote'\nbase_url = '{engine}'\n"
            f"[learner]\ntype = 'remote'\nbase_url = '{learner}'\napi_key_env = 'LEARNER_KEY'\n",
            "utf-8",
        )
        # Twice: a learner that has trained before starts again from the first weights.
        apart = [trained(recipe, tmp_path / name, *read_place(place).overrides(recipe)) for name in ("one", "two")]
    assert len(losses) >= 2
    assert apart == [(here, losses), (here, losses)]
