"""Botany: determine the tree of a leaf with a key, from features that the lens shows."""

from __future__ import annotations

import random
import re
from typing import Literal

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

FEATURES = {
    "margin": ["smooth", "toothed", "lobed"], "shape": ["oval", "heart", "needle", "palm"],
    "surface": ["waxy", "hairy", "dull"], "veins": ["parallel", "branched"],
}  # fmt: skip
TREES = [
    "silver birch", "field maple", "holm oak", "white willow", "grey alder", "wild cherry", "hornbeam", "rowan", "aspen",
    "sweet chestnut", "black poplar", "small-leaved lime",
]  # fmt: skip
PLACES = ["the mill pond", "the old quarry", "the chapel", "plot 7", "the railway bank", "the north gate", "the weir"]


class LeafKey(Environment):
    def reset(self, task: Task) -> None:
        self._leaf: dict[str, str] = task.fields["leaf"]
        self._key: dict[str, dict[str, str]] = task.fields["key"]

    @tool
    def look(self, feature: Literal["margin", "shape", "surface", "veins"]) -> str:
        """Look at a feature of the leaf through the lens.

        Args:
            feature: what to look at
        """
        return self._leaf[feature]

    @tool
    def read_key(self, tree: str) -> dict[str, str]:
        """What the key says about the leaves of a tree.

        Args:
            tree: name of the tree
        """
        if tree not in self._key:
            raise ToolFailure(f"the key has no {tree}; it has {', '.join(self._key)}")
        return self._key[tree]

    @tool
    def list_trees(self) -> list[str]:
        """The trees that the key knows."""
        return list(self._key)


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the right tree; looking at the leaf at least once earns 0.1."""
    if tagged(trajectory) == trajectory.task.fields["answer"]:
        return 1.0
    return 0.1 * any(step["tool"] == "look" for step in trajectory.transitions)


scorer = exact_match("answer")


def make_tasks(split: str, count: int, first_seed: int = 0) -> list[Task]:
    """Leaves that were collected; each comes with the key of its region."""
    tasks = []
    for seed in range(first_seed, first_seed + count):
        rng = random.Random(seed)
        trees = rng.sample(TREES, 5)
        kinds = set()
        while len(kinds) < len(trees):
            kinds.add(tuple(rng.choice(values) for values in FEATURES.values()))
        ordered = sorted(kinds)
        rng.shuffle(ordered)
        key = {tree: dict(zip(FEATURES, kind, strict=True)) for tree, kind in zip(trees, ordered, strict=True)}
        tree = rng.choice(trees)
        sheet = rng.randint(1, 9999)
        prompt = (
            f"Sheet {sheet}: a leaf that was found near {rng.choice(PLACES)}. Which tree is it from? Use lens and key, and end "
            "with the name as in <answer>rowan</answer>."
        )
        tasks.append(
            Task(
                id=f"{split}-{seed}",
                messages=({"role": "user", "content": prompt},),
                fields={"leaf": key[tree], "key": key, "answer": tree},
                seed=seed,
            )
        )
    return tasks


def train_tasks() -> list[Task]:
    return make_tasks("train", 60)


def validation_tasks() -> list[Task]:
    return make_tasks("validation", 12, first_seed=5000)


def held_out_tasks() -> list[Task]:
    return make_tasks("held_out", 24)
