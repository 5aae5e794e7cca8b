"""The scheduler: keeps groups in play and bounds how old a trained token can be.

It paces *starts*. At most (S + 1) * P groups are started and not yet released, where P is the number of groups a step
trains and S the start allowance; batches are handed over from a window of the W oldest groups. The oldest token of a
trained group is then at most S + ceil((W - 1) / P) steps old (windowed FIFO), so S is chosen to make that the bound.
S = 0 and W = 1 is synchronous training.

    next_batch   waits for groups in play; woken when one finishes
    release      reopens the slots of the trained groups, and starts the next ones with the new weights
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Self, final

from sparring.errors import ServiceError
from sparring.faults import fault_point
from sparring.ledger import DiscardReason, Ledger, RolloutState
from sparring.logs import get_logger
from sparring.rollouts.budget import FailureBudget
from sparring.rollouts.collector import GroupPlan, waves
from sparring.types import TrajectoryGroup

logger = get_logger(__name__)

MAX_LOST_IN_A_ROW = 8
"""Whole groups lost one after another before the run stops: something is down or refused, which is no bad luck."""


def start_allowance(*, max_steps_off_policy: int, window: int, groups_per_step: int) -> int:
    """S such that S + ceil((W - 1) / P) = the bound. Raises ValueError when the window alone exceeds the bound."""
    allowance = max_steps_off_policy - math.ceil((window - 1) / groups_per_step)
    if allowance < 0:
        raise ValueError(
            f"a window of {window} groups with {groups_per_step} a step lets a group wait "
            f"{math.ceil((window - 1) / groups_per_step)} steps, more than max_steps_off_policy = {max_steps_off_policy}; "
            "make rollout.staleness_window smaller"
        )
    return allowance


@final
class Scheduler:
    """Hands over batches of `groups_per_step` finished groups, none staler than the bound."""

    def __init__(
        self,
        *,
        play_group: Callable[[GroupPlan], Awaitable[TrajectoryGroup]],
        plans: Iterator[GroupPlan],
        ledger: Ledger,
        groups_per_step: int,
        max_steps_off_policy: int,
        window: int = 1,
        wave_size: int | None = None,
        version: int = 0,
        refill_groups: int = 0,
        budget: FailureBudget | None = None,
        on_group: Callable[[TrajectoryGroup], None] | None = None,
    ) -> None:
        """`plans` is the data order. `wave_size` (episodes) starts groups in waves, for a deterministic engine.

        `refill_groups`: how many groups a step may play in place of such whose members all earned the same, which teach
        nothing. When they are used up, or the data ends, the batch takes what there is.
        """
        self._play_group = play_group
        self._plans = plans
        self._ledger = ledger
        self._groups_per_step = groups_per_step
        self._bound = max_steps_off_policy
        self._window = window
        allowance = start_allowance(
            max_steps_off_policy=max_steps_off_policy, window=window, groups_per_step=groups_per_step
        )
        self._num_slots = (allowance + 1) * groups_per_step
        self._wave_size = wave_size
        self._version = version
        self._refill_groups = refill_groups
        self.budget = budget or FailureBudget(1.0)
        self._on_group = on_group
        self._in_play: dict[int, asyncio.Task[TrajectoryGroup]] = {}
        """Groups started and not handed over, oldest first."""
        self._planned: dict[int, GroupPlan] = {}
        """Plans that were drawn and not handed over, by position."""
        self._next: GroupPlan | None = None
        """Drawn, and first of the next wave."""
        self.outstanding: tuple[GroupPlan, ...] = ()
        """What was drawn and not trained when the last step was released: a run that goes on from there plays it again."""
        self._num_handed_over = 0
        self.num_stale = 0
        self.lost: list[TrajectoryGroup] = []
        """Groups of the last batch that were lost as a whole."""
        self.replaced: list[TrajectoryGroup] = []
        """Groups without signal that others of the last batch stand in for."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        for task in self._in_play.values():
            task.cancel()
        results = await asyncio.gather(*self._in_play.values(), return_exceptions=True)
        self.cancel([group for group in results if isinstance(group, TrajectoryGroup)])
        self._in_play.clear()
        self._planned.clear()

    async def next_batch(self) -> list[TrajectoryGroup]:
        """The oldest finished groups, in the order of their positions; fewer only when the data ends.

        Raises ServiceError after MAX_LOST_IN_A_ROW groups in a row were lost, or when `budget` is used up.
        """
        batch: list[TrajectoryGroup] = []
        self.replaced, self.lost = [], []
        lost_in_a_row = 0
        while len(batch) < self._groups_per_step:
            self._start()
            if not self._in_play:
                break
            position = await self._next_finished()
            group = self._in_play.pop(position).result()
            del self._planned[position]
            self.budget.count(
                len(group.trajectories) + group.num_lost, group.num_lost, group.num_client_errors, group.num_unrewarded
            )
            if not group.trajectories:
                lost_in_a_row += 1
                self.lost.append(group)
                if lost_in_a_row >= MAX_LOST_IN_A_ROW:
                    raise ServiceError(
                        f"{lost_in_a_row} groups in a row were lost (the last one: task {group.task.id}), "
                        f"{self.budget.causes}. See the reasons with `sparring runs show`, correct the cause, and resume the run."
                    )
                continue
            lost_in_a_row = 0
            if self._is_stale(group):
                self.num_stale += 1
                self._discard(group, DiscardReason.STALE, f"older than {self._bound} steps at version {self._version}")
                continue
            if len(self.replaced) < self._refill_groups and len(set(group.rewards)) == 1:
                self.replaced.append(group)
                continue
            self._num_handed_over += 1
            batch.append(group)
        while self.replaced and len(batch) < self._groups_per_step:  # the data ended: nothing stands in for these
            batch.append(self.replaced.pop(0))
        for group in self.replaced:
            self._discard(group, DiscardReason.ZERO_SIGNAL, "all members earned the same; another group was played")
        fault_point("step.claiming")
        for group in batch:
            for trajectory in group.trajectories:
                self._ledger.advance_nowait(trajectory.id, RolloutState.CLAIMED, step=self._version + 1)
        fault_point("step.claimed")
        return batch

    def release(self, version: int) -> None:
        """The batch is learned from and the engine plays with version `version`: count it and let new groups start. The ledger
        calls the batch trained as soon as a checkpoint holds it (`Ledger.publish_nowait`)."""
        self.outstanding = tuple(plan for _, plan in sorted(self._planned.items()))
        self._num_handed_over = 0
        self._version = version

    def cancel(self, batch: Sequence[TrajectoryGroup]) -> None:
        """Of these nothing is learned any more, since the run stops."""
        for group in batch:
            self._discard(group, DiscardReason.OPERATOR_CANCEL, "the run stopped before this group was trained")

    def start_ahead(self) -> None:
        """Start what the bound allows now; asynchronous play goes on while a batch is trained."""
        self._start()

    def _start(self) -> None:
        if self._wave_size is not None and self._in_play:
            return
        room = self._num_slots - len(self._in_play) - self._num_handed_over
        plans: list[GroupPlan] = []
        while len(plans) < room:
            plan = next(self._plans, None) if self._next is None else self._next
            self._next = None
            if plan is None:
                break
            plans.append(plan)
            self._planned[plan.position] = plan
            if self._wave_size is not None and len(waves(plans, self._wave_size)) > 1:
                # One group too many for this wave: it opens the next one.
                self._next = plans.pop()
                break
        for plan in plans:
            self._in_play[plan.position] = asyncio.ensure_future(self._play(plan))

    async def _play(self, plan: GroupPlan) -> TrajectoryGroup:
        group = await self._play_group(plan)
        if self._on_group is not None:
            self._on_group(group)
        return group

    async def _next_finished(self) -> int:
        """Position of the oldest finished group among the W positions from the oldest on; waits until there is one."""
        while True:
            # By position, not by count: however long the oldest takes, no more than W - 1 others overtake it.
            head = min(self._in_play)
            window = [position for position in sorted(self._in_play) if position < head + self._window]
            for position in window:
                if self._in_play[position].done():
                    return position
            await asyncio.wait([self._in_play[position] for position in window], return_when=asyncio.FIRST_COMPLETED)

    def _is_stale(self, group: TrajectoryGroup) -> bool:
        versions = [trajectory.oldest_version for trajectory in group.trajectories]
        return any(version is not None and self._version - version > self._bound for version in versions)

    def _discard(self, group: TrajectoryGroup, reason: DiscardReason, detail: str) -> None:
        for trajectory in group.trajectories:
            self._ledger.advance_nowait(trajectory.id, RolloutState.DISCARDED, reason=reason, detail=detail)
