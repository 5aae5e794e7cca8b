"""Analytics engineering: bring the settings of a warehouse model to what a colleague asks for."""

from __future__ import annotations

import random
from typing import Literal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Score, Task, Trajectory

SUBJECTS = ["orders", "customers", "refunds", "sessions", "invoices", "stock", "carriers", "coupons"]
LAYERS = ["stg", "int", "fct", "dim"]
KINDS = ["view", "table"]


FIRST_NUMBER = {"train": 1000, "validation": 4000, "held_out": 7000}
"""Of the requests of a split; each has a number of its own."""


class Project(Environment):
    """A project of models. Each is built as a view or a table."""

    def reset(self, task: Task) -> None:
        self._models = {name: dict(model) for name, model in task.fields["models"].items()}

    @tool
    def list_models(self) -> list[str]:
        """Names of all models."""
        return sorted(self._models)

    @tool
    def show_model(self, model: str) -> dict[str, str | list[str]]:
        """Settings of a model: how it is built, its owner, and the models it reads.

        Args:
            model: name of the model
        """
        return self._model(model)

    @tool
    def set_materialized(self, model: str, kind: Literal["view", "table"]) -> str:
        """Choose how a model is built.

        Args:
            model: name of the model
            kind: view, or table
        """
        self._model(model)["materialized"] = kind
        return f"{model} is built as a {kind}"

    def _model(self, name: str) -> dict:
        if name not in self._models:
            raise ToolFailure(f"there is no model {name}")
        return self._models[name]

    def final_state(self) -> dict[str, str]:
        return {name: model["materialized"] for name, model in self._models.items()}


def reward(trajectory: Trajectory) -> float:
    """1 when every model is built as it should be."""
    return float(trajectory.final_state == trajectory.task.fields["state"])


def scorer(trajectory: Trajectory) -> Score:
    """1 when the model that was asked for is right and no other model differs from how it was."""
    fields, state = trajectory.task.fields, trajectory.final_state or {}
    is_right = state.get(fields["model"]) == fields["kind"]
    others = [name for name in fields["models"] if name != fields["model"]]
    is_clean = all(state.get(name) == fields["models"][name]["materialized"] for name in others)
    return Score(float(is_right and is_clean), {"model": float(is_right), "others": float(is_clean)})


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"models-{split}-{number}")
    names = rng.sample([f"{layer}_{subject}" for layer in LAYERS for subject in SUBJECTS], 6)
    models = {
        name: {"materialized": rng.choice(KINDS), "owner": f"team {rng.choice('ABC')}", "reads": rng.sample(names, 1)}
        for name in names
    }
    model, kind = rng.choice(names), rng.choice(KINDS)
    reason = {"view": "it should always be fresh", "table": "the dashboards on it are slow"}[kind]
    prompt = f"Change request {FIRST_NUMBER[split] + number}. Please see to it that `{model}` is built as a {kind}, {reason}. Leave the other models as they are, and say when you are done."
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={
            "models": models, "model": model, "kind": kind,
            "state": {name: entry["materialized"] for name, entry in models.items()} | {model: kind},
        },
        seed=number,
    )  # fmt: skip


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
