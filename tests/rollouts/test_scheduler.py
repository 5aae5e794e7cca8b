"""The scheduler never hands over a group older than the bound, and loses none."""

import asyncio
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparring.config import validate
from sparring.errors import ServiceError
from sparring.ledger import Ledger, RolloutState
from sparring.rollouts import GroupPlan, Pacing, Scheduler
from sparring.rollouts.scheduler import MAX_LOST_IN_A_ROW, start_allowance
from sparring.types import Outcome, Reward, Sampling, StopReason, Task, Trajectory, TrajectoryGroup, Turn


class Collecting:
    """Plays groups under a virtual clock: each takes a random number of ticks, some are lost, and each remembers the
    policy version that was current when it started."""

    def __init__(self, ledger: Ledger, *, seed: int, loss_rate: float = 0.0) -> None:
        self.ledger, self.version, self.loss_rate = ledger, 0, loss_rate
        self.rng = random.Random(seed)
        self.started = 0

    async def play_group(self, plan: GroupPlan) -> TrajectoryGroup:
        self.started += 1
        version = self.version
        rollout_id = plan.rollout_id(0, 0)
        self.ledger.plan_nowait(rollout_id, task_id=plan.task.id, attempt=0)
        self.ledger.advance_nowait(rollout_id, RolloutState.LEASED)
        self.ledger.advance_nowait(rollout_id, RolloutState.RUNNING)
        is_lost = self.rng.random() < self.loss_rate
        for _ in range(self.rng.randrange(1, 40)):
            await asyncio.sleep(0)
        if is_lost:
            self.ledger.advance_nowait(rollout_id, RolloutState.DISCARDED, reason="infra_error")
            return TrajectoryGroup(task=plan.task, trajectories=(), num_lost=1)
        for state in (RolloutState.FINISHED, RolloutState.SCORED, RolloutState.ADMITTED):
            self.ledger.advance_nowait(rollout_id, state)
        turn = Turn(
            id=0, parent=None, branch_reason=None, prompt_ids=(1,), token_ids=(2,), sampled_logprobs=(-0.1,),
            versions=((version, 1),), fingerprint="f", stop_reason=StopReason.STOP, sampling=Sampling(),
            message={"role": "assistant", "content": ""}, num_computed_tokens=2, seconds=0.0,
        )  # fmt: skip
        trajectory = Trajectory(
            id=rollout_id,
            task=plan.task,
            attempt=0,
            turns=(turn,),
            messages=(),
            outcome=Outcome.FINISHED,
            reward=Reward(total=0.0),
            score=None,
        )
        return TrajectoryGroup(task=plan.task, trajectories=(trajectory,))


def plans(count: int):
    for position in range(count):
        task = Task(id=f"t{position}", messages=({"role": "user", "content": "?"},))
        yield GroupPlan(task=task, position=position, group_size=1, sampling=Sampling())


async def run(collecting: Collecting, scheduler: Scheduler, *, steps: int) -> list[tuple[int, list[TrajectoryGroup]]]:
    batches = []
    async with scheduler:
        for step in range(1, steps + 1):
            groups = await scheduler.next_batch()
            if not groups:
                break
            batches.append((collecting.version, groups))
            scheduler.start_ahead()
            for _ in range(collecting.rng.randrange(30)):
                await asyncio.sleep(0)
            collecting.version = step
            scheduler.release(step)
            collecting.ledger.publish_nowait(step, f"{step:06d}")
    return batches


@settings(max_examples=60, deadline=None)
@given(
    bound=st.sampled_from([0, 1, 3]),
    groups_per_step=st.integers(1, 5),
    window=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    loss_rate=st.sampled_from([0.0, 0.2]),
)
@example(bound=3, groups_per_step=4, window=2, seed=437, loss_rate=0.0)  # one slow group that many overtook
def test_no_trained_token_is_staler_than_the_bound_and_every_rollout_is_accounted_for(
    bound: int, groups_per_step: int, window: int, seed: int, loss_rate: float
) -> None:
    if -(-(window - 1) // groups_per_step) > bound:
        window = 1

    async def main() -> None:
        with Ledger() as ledger:
            collecting = Collecting(ledger, seed=seed, loss_rate=loss_rate)
            scheduler = Scheduler(
                play_group=collecting.play_group,
                plans=plans(40),
                ledger=ledger,
                pacing=Pacing(groups_per_step=groups_per_step, max_steps_off_policy=bound, window=window),
            )
            batches = await run(collecting, scheduler, steps=6)
            for version, groups in batches:
                for group in groups:
                    for trajectory in group.trajectories:
                        oldest = trajectory.oldest_version
                        assert oldest is not None
                        assert version - oldest <= bound
            assert scheduler.num_stale == 0  # pacing alone keeps the bound; discarding never had to
            counts = ledger.counts()
            finals = counts["trained"] + counts["discarded"]
            assert counts["planned_total"] == collecting.started
            assert counts["trained"] == sum(len(group.trajectories) for _, groups in batches for group in groups)
            # What was still in play when the run ended is discarded or stays pending, never lost.
            pending = sum(counts[state] for state in ("planned", "leased", "running", "finished", "scored", "admitted"))
            assert finals + pending == counts["planned_total"]
            assert ledger.verify(max_steps_off_policy=bound) == []

    asyncio.run(main())


def test_strict_first_in_first_out_hands_over_in_data_order() -> None:
    async def main() -> list[int]:
        with Ledger() as ledger:
            collecting = Collecting(ledger, seed=1)
            scheduler = Scheduler(
                play_group=collecting.play_group,
                plans=plans(12),
                ledger=ledger,
                pacing=Pacing(groups_per_step=3, max_steps_off_policy=2),
            )
            batches = await run(collecting, scheduler, steps=4)
            return [int(group.task.id[1:]) for _, groups in batches for group in groups]

    assert asyncio.run(main()) == list(range(12))


def test_asynchronous_play_really_runs_ahead() -> None:
    # Bound 2, three groups a step: while the first batch is trained, groups of the next two steps are in play.
    async def main() -> int:
        with Ledger() as ledger:
            collecting = Collecting(ledger, seed=1)
            scheduler = Scheduler(
                play_group=collecting.play_group,
                plans=plans(30),
                ledger=ledger,
                pacing=Pacing(groups_per_step=3, max_steps_off_policy=2),
            )
            async with scheduler:
                await scheduler.next_batch()
                scheduler.start_ahead()
                await asyncio.sleep(0)
                return collecting.started

    assert asyncio.run(main()) == 9


def test_an_environment_that_is_down_stops_the_run_before_the_data_is_used_up() -> None:
    async def main() -> int:
        with Ledger() as ledger:
            collecting = Collecting(ledger, seed=1, loss_rate=1.0)
            scheduler = Scheduler(
                play_group=collecting.play_group,
                plans=plans(1000),
                ledger=ledger,
                pacing=Pacing(groups_per_step=2, max_steps_off_policy=0),
            )
            async with scheduler:
                with pytest.raises(ServiceError, match="8 groups in a row"):
                    await scheduler.next_batch()
            return collecting.started

    assert asyncio.run(main()) <= MAX_LOST_IN_A_ROW + 2


def test_a_window_wider_than_the_bound_allows_is_refused() -> None:
    # W = 5, P = 2: a group may wait ceil(4 / 2) = 2 steps.
    assert start_allowance(max_steps_off_policy=3, window=5, groups_per_step=2) == 1
    config = validate(
        {"environment": {"target": "a:B"}, "reward": {"reward": "a:b"}},
        ["rollout.max_steps_off_policy=3", "rollout.staleness_window=5", "batch.global_batch_size=2"],
    )
    assert config.start_allowance == 1  # what checks and diagnosis report
    with pytest.raises(ValueError, match="staleness_window"):
        start_allowance(max_steps_off_policy=1, window=5, groups_per_step=2)


@pytest.mark.parametrize(("age", "num_kept"), [(1, 2), (2, 0)])
def test_groups_as_old_as_the_bound_are_kept_and_older_ones_discarded(age: int, num_kept: int) -> None:
    # Pacing keeps every group younger than that, so the episodes run with weights that the scheduler believes are gone.
    async def main() -> tuple[int, dict[str, int]]:
        with Ledger() as ledger:
            collecting = Collecting(ledger, seed=1)
            scheduler = Scheduler(
                play_group=collecting.play_group,
                plans=plans(2),
                ledger=ledger,
                version=age,
                pacing=Pacing(groups_per_step=2, max_steps_off_policy=1),
            )
            async with scheduler:
                assert len(await scheduler.next_batch()) == num_kept
            return scheduler.num_stale, ledger.counts()

    num_stale, counts = asyncio.run(main())
    assert counts["claimed"] == num_kept
    assert num_stale == counts.get("discarded/stale", 0) == counts["discarded"] == 2 - num_kept


def test_what_was_played_but_not_trained_is_discarded_when_the_run_stops() -> None:
    async def main() -> dict[str, int]:
        with Ledger() as ledger:
            collecting = Collecting(ledger, seed=1)
            scheduler = Scheduler(
                play_group=collecting.play_group,
                plans=plans(30),
                ledger=ledger,
                pacing=Pacing(groups_per_step=3, max_steps_off_policy=2),
            )
            async with scheduler:
                await scheduler.next_batch()
                scheduler.start_ahead()
                assert collecting.started == 9
                for _ in range(100):
                    await asyncio.sleep(0)
                scheduler.release(1)
                ledger.publish_nowait(1, "000001")
            return ledger.counts()

    counts = asyncio.run(main())
    assert counts["trained"] == 3
    assert counts["discarded/operator_cancel"] == 6 == counts["planned_total"] - 3


@pytest.mark.parametrize(
    ("refill", "num_silent", "num_plans"), [(0, 2, 20), (3, 2, 20), (1, 2, 20), (3, 3, 4), (50, 20, 20)]
)
def test_groups_of_equals_are_replaced_as_long_as_there_are_others(
    refill: int, num_silent: int, num_plans: int
) -> None:
    """The first `num_silent` groups teach nothing; two groups make a batch."""

    async def play_group(plan: GroupPlan) -> TrajectoryGroup:
        await asyncio.sleep(0)
        members = []
        for attempt in range(2):
            rollout_id = f"{plan.position}-{attempt}"
            ledger.plan_nowait(rollout_id, task_id=plan.task.id, attempt=attempt)
            for state in ("LEASED", "RUNNING", "FINISHED", "SCORED", "ADMITTED"):
                ledger.advance_nowait(rollout_id, RolloutState[state])
            reward = 0.5 if plan.position < num_silent else float(attempt)
            members.append(
                Trajectory(
                    id=rollout_id,
                    task=plan.task,
                    attempt=attempt,
                    turns=(),
                    messages=(),
                    outcome=Outcome.FINISHED,
                    reward=Reward(total=reward),
                    score=None,
                )
            )
        return TrajectoryGroup(task=plan.task, trajectories=tuple(members))

    async def main() -> tuple[list[str], list[str], dict[str, int]]:
        scheduler = Scheduler(
            play_group=play_group,
            plans=plans(num_plans),
            ledger=ledger,
            pacing=Pacing(groups_per_step=2, max_steps_off_policy=0, refill_groups=refill),
        )
        async with scheduler:
            batch = await scheduler.next_batch()
            scheduler.release(1)
            return [g.task.id for g in batch], [g.task.id for g in scheduler.replaced], ledger.counts()

    with Ledger() as ledger:
        batch, replaced, counts = asyncio.run(main())
    held = min(refill, num_silent)
    rest = [f"t{i}" for i in range(held, num_plans)][:2]
    back = 2 - len(rest)  # where the data ends, the oldest of them are trained after all
    assert batch == rest + [f"t{i}" for i in range(back)]
    assert replaced == [f"t{i}" for i in range(back, held)]
    assert counts.get("discarded/zero_signal", 0) == 2 * (held - back)
