"""Finished episodes that were not yet trained on when the run ended, so that a resumed run need not roll them out
again.

These episodes are kept only if rollouts run ahead of training, or if episodes wait for external agents. A run in
deterministic rounds repeats an interrupted step from its start, since this produces the same episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, final

from sparring.ledger import DiscardReason, Ledger, RolloutState
from sparring.rollouts.plan import GroupPlan
from sparring.run_folders.encode import encode
from sparring.run_folders.stored import parse_trajectory
from sparring.runtime.json_values import parse_json
from sparring.tracking.local import trajectory_json
from sparring.types import Trajectory


@final
class Kept:
    """The finished episodes in a run's ledger that were not yet trained on."""

    def __init__(self, ledger: Ledger, *, max_steps_off_policy: int) -> None:
        self._ledger = ledger
        self._bound = max_steps_off_policy
        self._found: dict[tuple[int, str], dict[int, Trajectory]] = {}

    def find(self, step: int) -> set[str]:
        """Return the ids of the episodes that a run continuing from `step` may train on. None of their tokens were
        sampled with weights from later steps, which were lost, and none will exceed the staleness bound."""
        for rollout_id, content in self._ledger.kept().items():
            if self._ledger.state(rollout_id) not in (RolloutState.ADMITTED, RolloutState.CLAIMED):
                continue
            entry = parse_json(content)
            trajectory = parse_trajectory(entry["trajectory"], entry["transitions"], f"ledger, rollout {rollout_id}")
            if self._may_be_trained(trajectory, step):
                group = self._found.setdefault((entry["position"], trajectory.task.id), {})
                group[trajectory.attempt] = trajectory
        return {one.id for group in self._found.values() for one in group.values()}

    def _may_be_trained(self, trajectory: Trajectory, step: int) -> bool:
        versions = [version for turn in trajectory.turns for version, _ in turn.versions]
        return all(step - self._bound <= version <= step for version in versions)

    def plans(self, plans: Iterable[GroupPlan]) -> Iterator[GroupPlan]:
        """Yield the same plans, and add to each the members that were kept."""
        for plan in plans:
            done = self._found.pop((plan.position, plan.task.id), {})
            yield replace(plan, done=done, keep=self._keep(plan.position))

    def close(self) -> None:
        """Mark the kept episodes that no plan used as discarded in the ledger."""
        for group in self._found.values():
            for trajectory in group.values():
                self._ledger.advance_nowait(
                    trajectory.id,
                    RolloutState.DISCARDED,
                    reason=DiscardReason.OPERATOR_CANCEL,
                    detail="the run stopped before this group was trained",
                )
        self._found.clear()

    def _keep(self, position: int) -> Callable[[Trajectory], None]:
        return partial(self._write, position)

    def _write(self, position: int, trajectory: Trajectory) -> None:
        entry: Mapping[str, Any] = {
            "position": position,
            "trajectory": trajectory_json(trajectory),
            "transitions": trajectory.transitions,
        }
        self._ledger.keep_nowait(trajectory.id, encode(entry))
