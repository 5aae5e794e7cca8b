"""What a run that is resumed need not play again: episodes that were finished and not trained when it ended.

Only where play runs ahead of learning, or waits for foreign agents: a run in deterministic rounds plays an interrupted step
again as a whole, since that gives the same episodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, final

from sparring.ledger import DiscardReason, Ledger, RolloutState
from sparring.rollouts.collector import GroupPlan
from sparring.tracking.encode import encode
from sparring.tracking.local import trajectory_json
from sparring.tracking.stored import trajectory_of
from sparring.types import Trajectory


@final
class Kept:
    """The finished episodes of a run's ledger that wait to be trained."""

    def __init__(self, ledger: Ledger, *, max_steps_off_policy: int) -> None:
        self._ledger = ledger
        self._bound = max_steps_off_policy
        self._found: dict[tuple[int, str], dict[int, Trajectory]] = {}

    def find(self, step: int) -> set[str]:
        """Ids of the episodes that a run which goes on from `step` may train: no token is from weights that were lost with
        later steps, and none will be older than the bound."""
        for rollout_id, content in self._ledger.kept().items():
            if self._ledger.state(rollout_id) not in (RolloutState.ADMITTED, RolloutState.CLAIMED):
                continue
            entry = json.loads(content)
            trajectory = trajectory_of(entry["trajectory"], entry["transitions"], f"ledger, rollout {rollout_id}")
            if self._may_be_trained(trajectory, step):
                group = self._found.setdefault((entry["position"], trajectory.task.id), {})
                group[trajectory.attempt] = trajectory
        return {one.id for group in self._found.values() for one in group.values()}

    def _may_be_trained(self, trajectory: Trajectory, step: int) -> bool:
        versions = [version for turn in trajectory.turns for version, _ in turn.versions]
        return all(step - self._bound <= version <= step for version in versions)

    def plans(self, plans: Iterable[GroupPlan]) -> Iterator[GroupPlan]:
        """The same, each with its members that were kept."""
        for plan in plans:
            done = self._found.pop((plan.position, plan.task.id), {})
            yield replace(plan, done=done, keep=self._keep(plan.position))

    def close(self) -> None:
        """Account for what was kept and not asked for."""
        for group in self._found.values():
            for trajectory in group.values():
                self._ledger.advance_nowait(
                    trajectory.id, RolloutState.DISCARDED, reason=DiscardReason.OPERATOR_CANCEL,
                    detail="the run stopped before this group was trained",
                )  # fmt: skip
        self._found.clear()

    def _keep(self, position: int) -> Callable[[Trajectory], None]:
        return partial(self._write, position)

    def _write(self, position: int, trajectory: Trajectory) -> None:
        entry: Mapping[str, Any] = {
            "position": position, "trajectory": trajectory_json(trajectory), "transitions": trajectory.transitions,
        }  # fmt: skip
        self._ledger.keep_nowait(trajectory.id, encode(entry))
