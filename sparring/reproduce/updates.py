"""Repeats the learner steps of a stored run. The same rollouts in the same order give the same weights.

The result of training depends only on the initial weights and on the rollouts that training consumed. The ledger
contains all tokens of these rollouts, in order. Therefore, even a run whose rollouts ran ahead of learning can be
verified, although its episodes cannot be repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from sparring.assembly import close, load_into_engine, load_training_parts, refuse_training
from sparring.assembly.update_rule import build_update_rule
from sparring.errors import DataError
from sparring.ledger import Ledger, RolloutRecord
from sparring.ledger.erasure import list_erased
from sparring.loop import learn
from sparring.protocols import Learner
from sparring.run_folders import RunFolder
from sparring.runtime import event_loop
from sparring.training import checkpoints
from sparring.types import Outcome, Reward, Task, Trajectory, TrajectoryGroup, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Relearned:
    """The weights after a step, as recomputed and as recorded."""

    step: int
    num_rollouts: int
    """The number of rollouts that the step consumed. 0 for the starting point."""
    reached: str
    """The content hash of the recomputed weights."""
    recorded: Mapping[str, str]
    """The recorded hashes by source: `checkpoint`, and `turns` (sampled with these weights). Empty if neither
    remains."""
    difference: str | None
    """The difference as a sentence, or None if all records agree."""


@final
class Relearning:
    """An iterator that repeats the learner's steps of a run. Each iteration blocks, and the iterator keeps a model in
    memory.

        for step in Relearning("runs/quickstart-001"):
            print(step.step, step.reached, step.recorded)

    It starts from the oldest checkpoint that the run still has, or from the initial weights if nothing was trained
    before the first step. It ends with the newest checkpoint. The first item describes the starting point.
    """

    def __init__(self, run: str | Path) -> None:
        """Raise UsageError if nothing was trained in the run, and DataError if it has no checkpoint or if its ledger is
        incomplete."""
        self._folder = RunFolder(Path(run))
        self._folder.require_manifest()
        self._config = self._folder.config()
        refuse_training(self._config, self._folder.code)
        path = self._folder.path / "ledger.sqlite"
        if not path.is_file():
            raise DataError(
                f"{self._folder.path} has no ledger.sqlite: it has run no episode yet, or the file is missing."
            )
        with Ledger(path) as ledger:
            published = [(step, name) for step, name in ledger.published() if name]
            consumed = ledger.consumed()
            self._fingerprints = ledger.fingerprints()
        self._stored = {
            step: self._folder.checkpoints / name
            for step, name in published
            if (self._folder.checkpoints / name).is_dir()
        }
        if not self._stored:
            raise DataError(
                f"{self._folder.path} has no checkpoint that is in its ledger, so there is nothing to compare with; "
                "train it until its first checkpoint."
            )
        # Weights that were trained before the first step were saved as those of step 0, and may have been deleted. A
        # branched run has no first step.
        self._begins_as_loaded = published[0][0] > 0 and min(consumed, default=0) == 1
        self._start = 0 if self._begins_as_loaded else min(self._stored)
        self._consumed = {
            step: ids for step, ids in sorted(consumed.items()) if self._start < step <= max(self._stored)
        }
        erased = list_erased(path)
        if steps := [step for step, ids in self._consumed.items() if not erased.isdisjoint(ids)]:
            raise DataError(
                f"The episodes of step {steps[0]} of {self._folder.path} were erased (`sparring runs erase`), so its training "
                "cannot be repeated."
            )

    def __len__(self) -> int:
        return 1 + len(self._consumed)

    def __iter__(self) -> Iterator[Relearned]:
        with Ledger(self._folder.path / "ledger.sqlite") as ledger, Ledger() as nothing_is_played:
            known = {record.id: record for record in ledger.rollouts(split="train")}
            parts = load_training_parts(self._config, self._folder.code, nothing_is_played, uses_servers=False)
            try:
                learning = build_update_rule(parts)
                tasks = {task.id: task for task in parts.tasks.train}
                if parts.teachers is not None:  # it may be the policy after the warm start
                    loading = load_into_engine(parts, self._folder, parts.initial_weights, version=0)
                    event_loop.submit(loading).result()
                if not self._begins_as_loaded:
                    checkpoints.load(self._stored[self._start], learning.learner)
                yield self._compared(self._start, 0, learning.learner)
                for step, ids in self._consumed.items():
                    groups = _groups([_trajectory(known[id], ledger) for id in ids], tasks)
                    learn(learning, groups, step)
                    yield self._compared(step, len(ids), learning.learner)
            finally:
                event_loop.submit(close(parts)).result()

    def _compared(self, step: int, num_rollouts: int, learner: Learner) -> Relearned:
        weights = learner.export_weights()
        recorded: dict[str, str] = {}
        difference = None
        if step in self._fingerprints:
            recorded["turns"] = self._fingerprints[step]
            if recorded["turns"] != weights.fingerprint:
                difference = (
                    f"step {step} leads to weights {weights.fingerprint}, but the run continued with "
                    f"{recorded['turns']}"
                )
        if step in self._stored:
            stored = checkpoints.read_weights(self._stored[step])
            recorded["checkpoint"] = stored.fingerprint
            if stored.fingerprint != weights.fingerprint:
                difference = f"step {step} does not lead to {self._stored[step]}: {_first_difference(stored, weights)}"
        return Relearned(
            step=step, num_rollouts=num_rollouts, reached=weights.fingerprint, recorded=recorded, difference=difference
        )


def _groups(trajectories: Sequence[Trajectory], tasks: Mapping[str, Task]) -> list[TrajectoryGroup]:
    """Return the groups that a step consumed, as the learner received them. A group is always consumed as a whole. `tasks`
    are those of the recipe by id, because the ledger does not contain their fields."""
    found = itertools.groupby(trajectories, key=lambda one: (_place(one.id), one.task.id))
    members = [tuple(one) for _, one in found]
    return [TrajectoryGroup(task=tasks.get(group[0].task.id, group[0].task), trajectories=group) for group in members]


def _trajectory(record: RolloutRecord, ledger: Ledger) -> Trajectory:
    result: Any = record.result
    if not isinstance(result, dict) or "turn_rewards" not in result:
        raise DataError(
            f"rollout {record.id} was recorded by a version that stored no rewards by turn in the ledger, so its "
            "training data cannot be reconstructed. Runs of the current version can be repeated."
        )
    turn_rewards = result["turn_rewards"]
    return Trajectory(
        id=record.id,
        task=Task(id=record.task_id, messages=()),
        attempt=record.attempt,
        turns=tuple(turn for turn in ledger.load_turns(record.id) if turn.learns and turn.is_received),
        messages=(),
        outcome=Outcome(result["outcome"]),
        reward=Reward(
            total=result["reward"],
            per_turn=None if turn_rewards is None else {int(turn): value for turn, value in turn_rewards.items()},
        ),
        score=None,
    )


def _place(rollout_id: str) -> str:
    """Return the position of a rollout's group in the data.

    Members that were kept across a resume have a different group name from the others (`12` and `r40-12`).
    """
    return rollout_id.split("/")[1].rpartition("-")[2]


def _first_difference(stored: Weights, reached: Weights) -> str:
    for name, tensor in stored.tensors.items():
        if name not in reached.tensors or reached.tensors[name].shape != tensor.shape:
            return f"there is no {name} with that shape"
        largest = (reached.tensors[name].cpu() - tensor).abs().max().item()
        if largest:
            return f"{name} differs by up to {largest:.3g}"
    return "names or types of tensors differ"
