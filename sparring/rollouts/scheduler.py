"""The scheduler, which keeps groups running and bounds the age of trained tokens.

It limits the *starts* of groups. At most (S + 1) * P groups are started and not yet released, where P is the number of
groups per step and S is the start allowance. Batches are taken from a window of the W oldest groups. The oldest token
of a trained group is then at most S + ceil((W - 1) / P) steps old (windowed FIFO). S is chosen so that this number
equals the configured bound. S = 0 and W = 1 is synchronous training.

    next_batch   waits for running groups, and wakes up when a group finishes
    release      frees the slots of the trained groups, and starts the next groups with the new weights
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, final

from sparring.errors import ServiceError
from sparring.ledger import DiscardReason, Ledger, RolloutState
from sparring.rollouts.budget import FailureBudget
from sparring.rollouts.plan import GroupPlan
from sparring.runtime.faults import fault_point
from sparring.runtime.logs import get_logger
from sparring.types import TrajectoryGroup

logger = get_logger(__name__)

MAX_LOST_IN_A_ROW = 8
"""The number of consecutive groups lost as a whole at which the run stops. So many losses are not a coincidence: a
service is down or refuses requests."""


def start_allowance(*, max_steps_off_policy: int, window: int, groups_per_step: int) -> int:
    """Return S such that S + ceil((W - 1) / P) equals the bound. Raises ValueError if the window alone exceeds the
    bound."""
    allowance = max_steps_off_policy - math.ceil((window - 1) / groups_per_step)
    if allowance < 0:
        raise ValueError(
            f"a window of {window} groups with {groups_per_step} groups per step lets a group wait "
            f"{math.ceil((window - 1) / groups_per_step)} steps, which exceeds max_steps_off_policy = {max_steps_off_policy}; "
            "reduce rollout.staleness_window"
        )
    return allowance


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """The number of groups per step, and how far ahead of the learner new groups may start."""

    groups_per_step: int
    max_steps_off_policy: int
    window: int = 1
    """The number of oldest groups from which a batch may be taken."""
    wave_size: int | None = None
    """The size of a wave in episodes, for a deterministic engine. None starts groups without waves."""
    refill_groups: int = 0
    """The maximum number of groups with equal rewards, and therefore no gradient, that a step may replace. When this
    number is used up, or when the data ends, the batch also includes groups without signal."""

    @property
    def start_allowance(self) -> int:
        """The start allowance S of these settings (see the function `start_allowance`)."""
        return start_allowance(
            max_steps_off_policy=self.max_steps_off_policy, window=self.window, groups_per_step=self.groups_per_step
        )


@final
class Scheduler:
    """Provides batches of `groups_per_step` finished groups. No group exceeds the staleness bound."""

    def __init__(
        self,
        *,
        play_group: Callable[[GroupPlan], Awaitable[TrajectoryGroup]],
        plans: Iterator[GroupPlan],
        ledger: Ledger,
        pacing: Pacing,
        version: int = 0,
        budget: FailureBudget | None = None,
        on_group: Callable[[TrajectoryGroup], None] | None = None,
    ) -> None:
        """Create a scheduler. `plans` is the data order, and `version` is the policy version from which the run
        continues."""
        self._play_group = play_group
        self._plans = plans
        self._ledger = ledger
        self._pacing = pacing
        self._num_slots = (pacing.start_allowance + 1) * pacing.groups_per_step
        self._version = version
        self.budget = budget or FailureBudget(1.0)
        self._on_group = on_group
        self._in_play: dict[int, asyncio.Task[TrajectoryGroup]] = {}
        """The groups that were started and not yet returned, oldest first."""
        self._finished: list[int] = []
        """The positions of those groups that are finished, as a heap."""
        self._news = asyncio.Event()
        """Set when a group is finished."""
        self._planned: dict[int, GroupPlan] = {}
        """The plans that were taken and not yet returned, by position."""
        self._next: GroupPlan | None = None
        """The plan that was already taken and starts the next wave."""
        self.outstanding: tuple[GroupPlan, ...] = ()
        """The plans that were taken and not trained when the last step was released. A run that continues from there
        repeats these plans."""
        self._num_handed_over = 0
        self.num_stale = 0
        self.lost: list[TrajectoryGroup] = []
        """The groups of the last batch that were lost as a whole."""
        self.replaced: list[TrajectoryGroup] = []
        """The groups without signal that other groups of the last batch replaced."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        for task in self._in_play.values():
            task.cancel()
        results = await asyncio.gather(*self._in_play.values(), return_exceptions=True)
        self.cancel([group for group in results if isinstance(group, TrajectoryGroup)])
        self._in_play.clear()
        self._finished.clear()
        self._planned.clear()

    async def next_batch(self) -> list[TrajectoryGroup]:
        """Return the oldest finished groups in the order of their positions. Fewer groups are returned only when the
        data ends.

        Raises ServiceError if MAX_LOST_IN_A_ROW consecutive groups are lost, or if `budget` is used up.
        """
        batch: list[TrajectoryGroup] = []
        self.replaced, self.lost = [], []
        lost_in_a_row = 0
        while len(batch) < self._pacing.groups_per_step:
            self._start()
            if not self._in_play:
                break
            position = await self._next_finished()
            group = self._in_play.pop(position).result()
            del self._planned[position]
            self.budget.count(
                len(group.trajectories) + group.num_lost,
                group.num_lost,
                group.num_client_errors,
                group.num_unrewarded,
                group.num_broken,
            )
            lost_in_a_row = lost_in_a_row + 1 if len(group.trajectories) == group.num_broken else 0
            if lost_in_a_row >= MAX_LOST_IN_A_ROW:
                raise ServiceError(
                    f"{lost_in_a_row} groups in a row were lost (the last one with task {group.task.id}): "
                    f"{self.budget.causes}. See the reasons with `sparring runs show`, correct the cause, and resume the run."
                )
            if not group.trajectories:
                self.lost.append(group)
                continue
            if self._is_stale(group):
                self.num_stale += 1
                self._discard(
                    group,
                    DiscardReason.STALE,
                    f"older than {self._pacing.max_steps_off_policy} steps at version {self._version}",
                )
                continue
            if len(self.replaced) < self._pacing.refill_groups and len(set(group.rewards)) == 1:
                self.replaced.append(group)
                continue
            self._num_handed_over += 1
            batch.append(group)
        while self.replaced and len(batch) < self._pacing.groups_per_step:  # the data ended, so nothing replaces these
            batch.append(self.replaced.pop(0))
        for group in self.replaced:
            self._discard(
                group,
                DiscardReason.ZERO_SIGNAL,
                "all members have the same reward; another group replaced it",
            )
        fault_point("step.claiming")
        for group in batch:
            for trajectory in group.trajectories:
                self._ledger.advance_nowait(trajectory.id, RolloutState.CLAIMED, step=self._version + 1)
        fault_point("step.claimed")
        return batch

    def release(self, version: int) -> None:
        """Count the batch as trained, and let new groups start. The engine must already sample with version `version`.
        The ledger marks the batch as trained as soon as a checkpoint contains it (`Ledger.publish_nowait`)."""
        self.outstanding = tuple(plan for _, plan in sorted(self._planned.items()))
        self._num_handed_over = 0
        self._version = version

    def cancel(self, batch: Sequence[TrajectoryGroup]) -> None:
        """Discard a batch that will not be trained on because the run stops."""
        for group in batch:
            self._discard(group, DiscardReason.OPERATOR_CANCEL, "the run stopped before this group was trained")

    def start_ahead(self) -> None:
        """Start all groups that the bound currently allows, so that rollouts continue while a batch is trained."""
        self._start()

    def _start(self) -> None:
        if self._pacing.wave_size is not None and self._in_play:
            return
        room = self._num_slots - len(self._in_play) - self._num_handed_over
        plans: list[GroupPlan] = []
        num_episodes = 0
        while len(plans) < room:
            plan = next(self._plans, None) if self._next is None else self._next
            self._next = None
            if plan is None:
                break
            self._planned[plan.position] = plan
            num_episodes += plan.group_size
            if plans and self._pacing.wave_size is not None and num_episodes > self._pacing.wave_size:
                # This group is one too many for the current wave, so it starts the next wave.
                self._next = plan
                break
            plans.append(plan)
        for plan in plans:
            self._in_play[plan.position] = asyncio.ensure_future(self._play(plan))

    async def _play(self, plan: GroupPlan) -> TrajectoryGroup:
        try:
            group = await self._play_group(plan)
            if self._on_group is not None:
                self._on_group(group)
            return group
        finally:
            heapq.heappush(self._finished, plan.position)
            self._news.set()

    async def _next_finished(self) -> int:
        """Wait for a finished group among the W oldest positions, and return the position of the oldest."""
        while True:
            # The window counts positions, not groups: even if the oldest group takes very long, at most W - 1 others
            # overtake it.
            if self._finished and self._finished[0] < min(self._in_play) + self._pacing.window:
                return heapq.heappop(self._finished)
            self._news.clear()
            await self._news.wait()

    def _is_stale(self, group: TrajectoryGroup) -> bool:
        versions = [trajectory.oldest_version for trajectory in group.trajectories]
        return any(
            version is not None and self._version - version > self._pacing.max_steps_off_policy for version in versions
        )

    def _discard(self, group: TrajectoryGroup, reason: DiscardReason, detail: str) -> None:
        for trajectory in group.trajectories:
            self._ledger.advance_nowait(trajectory.id, RolloutState.DISCARDED, reason=reason, detail=detail)
