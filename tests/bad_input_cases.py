"""What a case of bad input is, and how it is arranged."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparring.config import load_config
from sparring.run_folders import RunFolder

CHASE = Path(__file__).parents[1] / "recipes" / "pointer_chase"
USAGE, DATA, SERVICE, GATE = 2, 3, 4, 5
DEEP, LONG = 100_000, "x" * 300

DRY = ("train", "toy", "--dry-run", "--json")
PLAY = (
    "train",
    "toy",
    "--json",
    "--no-check",
    "schedule.max_steps=1",
    "schedule.val_every=0",
    "evaluation.val_num_tasks=2",
    "batch.global_batch_size=2",
    "batch.group_size=2",
    "evaluation.allow_zero_baseline=true",
)


@dataclass(frozen=True)
class Case:
    given: str
    arguments: tuple[str, ...]
    exit_code: int
    parts: tuple[str, ...]
    arrange: Callable[[], object] = lambda: None


def write(name: str, text: str) -> Callable[[], object]:
    return lambda: Path(name).write_text(text, "utf-8")


def append(name: str, text: str) -> Callable[[], object]:
    return lambda: Path(name).write_text(Path(name).read_text("utf-8") + text, "utf-8")


def a_run(*, name: str = "old", status: str = "completed") -> RunFolder:
    recipe = Path("toy/recipe.toml")
    folder = RunFolder.create(load_config(recipe), recipe, name=name)
    folder.set_status(status, step=1)
    return folder


def a_run_with(name: str) -> None:
    path = a_run().path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), name: "x"}), "utf-8")


def a_baseline() -> None:
    recipe = Path("toy/recipe.toml")
    config = load_config(recipe, ["engine.type=scripted", "engine.script=expert:act"])
    RunFolder.create(config, recipe, name="script")


def a_damaged_checkpoint() -> None:
    checkpoint = a_run().checkpoints / "000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights.safetensors").write_bytes(b"damaged")
    (checkpoint / "manifest.json").write_text(
        '{"format": 1, "files": {"weights.safetensors": "00", "state.json": "00"}}'
    )


def deep(name: str, *, levels: int = DEEP) -> Callable[[], object]:
    return write(name, f'{{"prompt": "a", "b": {"[" * levels}{"]" * levels}}}\n')


def deep_in_run(name: str) -> Callable[[], object]:
    return lambda: deep(str(a_run().path / name))()


def a_torn_checkpoint() -> None:
    (a_run().checkpoints / "000001").mkdir(parents=True)


def tool_of(signature: str) -> Callable[[], object]:
    source = f"""
from sparring.environments import Environment, tool

class Shop(Environment):
    @tool
    def get({signature}):
        "Get."
"""
    return write("toy/shop.py", source)


def without(name: str, line: str) -> None:
    Path(name).write_text(Path(name).read_text("utf-8").replace(line, ""), "utf-8")
