"""Whole runs under a virtual clock: the real scheduler, data order, ledger and resumption; played episodes, weights and the disk
are simulated, and the process dies at seeded moments.

What survives a death is what was on the disk: the checkpoints, and of the ledger's changes a beginning that holds at least what
was waited for.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import selectors
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from sparring.ledger import DiscardReason, Ledger, RolloutState
from sparring.ledger.states import FINAL_STATES
from sparring.rollouts import Curriculum, GroupPlan, Pacing, Scheduler, TaskKinds, TaskSelection
from sparring.rollouts.resumption import Kept
from sparring.types import Outcome, Reward, Sampling, StopReason, Task, Trajectory, TrajectoryGroup, Turn

TIMEOUT_SECONDS = 60.0
TASKS = [Task(id=f"t{number}", messages=({"role": "user", "content": "?"},)) for number in range(5)]
SELECTION = TaskSelection(
    select="all", easy_threshold=1.0, hard_threshold=0.0, retry_share=0.1, history_groups=2, success_threshold=0.5
)


class Killed(BaseException):
    """The process is dead."""


class Deadlock(AssertionError):
    """Everything waits, and nothing will ever happen."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes when there is nothing else to do, and then at once."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_VirtualSelector(self))

    def time(self) -> float:
        return self.now


class _VirtualSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events and timeout is None:
            raise Deadlock(f"at {self._loop.now:g} s")
        if not events and timeout is not None:
            self._loop.now += max(timeout, 0.0)
        return events


@dataclass(frozen=True)
class Conditions:
    """What a seed decides."""

    seed: int
    bound: int
    window: int
    groups_per_step: int
    group_size: int
    save_every: int
    num_steps: int
    loss_rate: float
    hang_rate: float
    deaths: tuple[int, ...]
    """After how many changes of the ledger each process dies; the one after the last lives."""

    @classmethod
    def of(cls, seed: int) -> Conditions:
        rng = random.Random(seed)
        bound, groups = rng.choice((0, 0, 1, 2, 3)), rng.randint(1, 3)
        window = 1 + rng.randrange(bound * groups + 1) if rng.random() < 0.5 else 1
        deaths = tuple(rng.randrange(1, 200) for _ in range(rng.choice((0, 1, 1, 2, 3))))
        return cls(
            seed=seed,
            bound=bound,
            window=window,
            groups_per_step=groups,
            group_size=rng.randint(1, 3),
            save_every=rng.randint(1, 3),
            num_steps=rng.randint(3, 6),
            loss_rate=rng.choice((0.0, 0.1)),
            hang_rate=rng.choice((0.0, 0.02)),
            deaths=deaths,
        )

    def draw(self, *name: object) -> random.Random:
        return random.Random(repr((self.seed, *name)))


@dataclass
class Disk:
    """What survives, and what an observer from outside has seen."""

    ledger: Path
    checkpoints: dict[int, str] = field(default_factory=dict)
    num_processes: int = 0
    contents: dict[str, str] = field(default_factory=dict)
    """Of every episode that was played to its end, by rollout id."""
    failed: set[str] = field(default_factory=set)
    found: list[str] = field(default_factory=list)
    """What was wrong right after a death."""


class _Queue:
    """Stands in for a ledger's writer: changes reach the disk late, and after `dies_after` of them none does."""

    def __init__(self, writer: Any, *, dies_after: int | None, rng: random.Random) -> None:
        self._writer, self._left, self._rng = writer, dies_after, rng
        self._pending: list[Callable[[Any], Any]] = []

    def submit(self, job: Callable[[Any], Any]) -> Future[Any]:
        if self._left == 0:
            self.die()
        if self._left is not None:
            self._left -= 1
        self._pending.append(job)
        return _Result(self)

    def push(self) -> Any:
        jobs, self._pending = self._pending, []
        futures = [self._writer.submit(job) for job in jobs]
        return futures[-1].result() if futures else None

    def die(self) -> None:
        self._left = 0
        reached = self._rng.randrange(len(self._pending) + 1)
        self._pending = self._pending[:reached]
        self.push()
        raise Killed

    def close(self) -> None:
        self._writer.close()


class _Result(Future[Any]):
    def __init__(self, queue: _Queue) -> None:
        super().__init__()
        self._queue = queue

    def result(self, timeout: float | None = None) -> Any:
        """Wait for this job and everything before it."""
        return self._queue.push()


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class Process:
    """One process of the run: from its start to its end or death."""

    def __init__(self, conditions: Conditions, disk: Disk) -> None:
        self.conditions, self.disk = conditions, disk
        deaths = conditions.deaths
        dies_after = deaths[disk.num_processes] if disk.num_processes < len(deaths) else None
        self.ledger = Ledger(disk.ledger)
        self.label = f"r{disk.num_processes}-" if disk.num_processes else ""
        rng = conditions.draw("queue", disk.num_processes)
        self.ledger._writer = _Queue(self.ledger._writer, dies_after=dies_after, rng=rng)  # type: ignore[assignment]
        self.is_first = disk.num_processes == 0
        disk.num_processes += 1
        self.version, self.weights = 0, "start"

    async def run(self) -> str:
        """The weights at the end."""
        conditions, ledger = self.conditions, self.ledger
        curriculum = Curriculum(
            TASKS,
            seed=conditions.seed,
            max_epochs=100,
            group_size=conditions.group_size,
            sampling=Sampling(),
            selection=SELECTION,
            kinds=TaskKinds(),
            label=self.label,
        )
        # Synchronous runs play an interrupted step again, as the trainer's do in deterministic rounds.
        kept = Kept(ledger, max_steps_off_policy=conditions.bound) if conditions.bound else None
        step, outstanding = 0, []
        if not self.is_first:
            if self.disk.checkpoints:
                step = max(self.disk.checkpoints)
                state = json.loads(self.disk.checkpoints[step])
                self.weights = state["weights"]
                curriculum.restore(state["curriculum"])
                outstanding = [curriculum.again(TASKS[number], place) for place, number in state["outstanding"]]
                ledger.publish_nowait(step, str(step))
            ledger.rewind_nowait(step, str(step), keep=kept.find(step) if kept is not None else ())
        self.version = step
        plans: Iterator[GroupPlan] = chain(outstanding, curriculum)
        scheduler = Scheduler(
            play_group=self.play_group,
            plans=plans if kept is None else kept.plans(plans),
            ledger=ledger,
            version=step,
            pacing=Pacing(
                groups_per_step=conditions.groups_per_step,
                max_steps_off_policy=conditions.bound,
                window=conditions.window,
            ),
        )
        async with scheduler:
            while step < conditions.num_steps:
                groups = await scheduler.next_batch()
                scheduler.start_ahead()
                step += 1
                await asyncio.sleep(conditions.draw("learn", step).uniform(0, 20))
                consumed = [self.disk.contents[one.id] for group in groups for one in group.trajectories]
                self.weights, self.version = digest(self.weights, consumed), step
                scheduler.release(step)
                curriculum.record(groups)
                if step % conditions.save_every == 0 or step == conditions.num_steps:
                    self.save(step, curriculum, scheduler.outstanding)
        if kept is not None:
            kept.close()
        ledger.flush()
        return self.weights

    def save(self, step: int, curriculum: Curriculum, outstanding: tuple[GroupPlan, ...]) -> None:
        state = {
            "weights": self.weights,
            "curriculum": curriculum.state(),
            "outstanding": [[plan.position, int(plan.task.id[1:])] for plan in outstanding],
        }
        self.ledger.flush()
        self.disk.checkpoints[step] = json.dumps(state)
        self.ledger.publish_nowait(step, str(step)).result()

    async def play_group(self, plan: GroupPlan) -> TrajectoryGroup:
        missing = [member for member in range(plan.group_size) if member not in plan.done]
        members = [asyncio.ensure_future(self.play(plan, member)) for member in missing]
        try:
            played = await asyncio.gather(*members)
        except asyncio.CancelledError:
            await asyncio.gather(*members, return_exceptions=True)
            for one in (*plan.done.values(), *(member.result() for member in members if not member.cancelled())):
                if one is not None:
                    self.discard(one.id, DiscardReason.OPERATOR_CANCEL)
            raise
        by_member = {**plan.done, **dict(zip(missing, played, strict=True))}
        whole = tuple(one for _, one in sorted(by_member.items()) if one is not None)
        if len(whole) < min(2, plan.group_size):
            for one in whole:
                self.discard(one.id, DiscardReason.GROUP_INCOMPLETE)
            whole = ()
        return TrajectoryGroup(task=plan.task, trajectories=whole, num_lost=plan.group_size - len(whole))

    async def play(self, plan: GroupPlan, member: int) -> Trajectory | None:
        for attempt in range(2):
            found = await self.attempt(plan, member, attempt)
            if found is not None:
                return found
            await asyncio.sleep(0.5)
        return None

    async def attempt(self, plan: GroupPlan, member: int, attempt: int) -> Trajectory | None:
        rollout_id, ledger, conditions = plan.rollout_id(member, attempt), self.ledger, self.conditions
        rng = conditions.draw("play", plan.position, member, attempt)
        ledger.plan_nowait(rollout_id, task_id=plan.task.id, attempt=member)
        ledger.advance_nowait(rollout_id, RolloutState.LEASED)
        ledger.advance_nowait(rollout_id, RolloutState.RUNNING)
        turns: list[Turn] = []
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                for number in range(rng.randint(1, 3)):
                    turns.append(self.turn(number))
                    ledger.record_turn_nowait(rollout_id, turns[-1])
                    await asyncio.sleep(1e9 if rng.random() < conditions.hang_rate else rng.expovariate(0.2))
                if rng.random() < conditions.loss_rate:
                    self.discard(rollout_id, DiscardReason.INFRA_ERROR)
                    return None
        except TimeoutError:
            self.discard(rollout_id, DiscardReason.ENV_TIMEOUT)
            return None
        except asyncio.CancelledError:
            self.discard(rollout_id, DiscardReason.OPERATOR_CANCEL)
            raise
        for state in (RolloutState.FINISHED, RolloutState.SCORED):
            ledger.advance_nowait(rollout_id, state)
        self.disk.contents[rollout_id] = digest(plan.position, member, [turn.fingerprint for turn in turns])
        trajectory = Trajectory(
            id=rollout_id,
            task=plan.task,
            attempt=member,
            turns=tuple(turns),
            messages=(),
            outcome=Outcome.FINISHED,
            reward=Reward(total=0.0),
            score=None,
        )
        if plan.keep is not None:
            plan.keep(trajectory)
        ledger.advance_nowait(rollout_id, RolloutState.ADMITTED)
        return trajectory

    def turn(self, number: int) -> Turn:
        return Turn(
            id=number, parent=None, branch_reason=None if number == 0 else "edited_history", prompt_ids=(1,), token_ids=(2,),
            sampled_logprobs=(-0.5,), versions=((self.version, 1),), fingerprint=self.weights, stop_reason=StopReason.STOP,
            sampling=Sampling(), message={"role": "assistant", "content": ""}, num_computed_tokens=1, seconds=0.0,
        )  # fmt: skip

    def discard(self, rollout_id: str, reason: DiscardReason) -> None:
        self.disk.failed.add(rollout_id)
        self.ledger.advance_nowait(rollout_id, RolloutState.DISCARDED, reason=reason)


def simulate(conditions: Conditions, folder: Path) -> tuple[str, Disk]:
    """Processes one after the other until one comes to the end: the weights then, and the disk."""
    disk = Disk(folder / f"{conditions.seed}-{len(conditions.deaths)}.sqlite")
    while True:
        loop = VirtualLoop()
        process, died = Process(conditions, disk), False
        try:
            return loop.run_until_complete(process.run()), disk
        except Killed:
            _bury(loop)
            died = True
        except Deadlock:
            _bury(loop)
            raise
        finally:
            loop.close()
            process.ledger.close()
        if died:
            with Ledger(disk.ledger) as ledger:
                disk.found += ledger.verify(max_steps_off_policy=conditions.bound)
                if ledger.last_published not in (None, *disk.checkpoints):
                    disk.found.append(f"checkpoint {ledger.last_published} was published and is not there")


def _bury(loop: VirtualLoop) -> None:
    """A dead process's tasks end without having done anything more."""
    loop.set_exception_handler(lambda *_: None)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    left = asyncio.all_tasks(loop)
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def broken(conditions: Conditions, folder: Path) -> list[str]:
    """What is wrong at the end of a simulated run, in words."""
    weights, disk = simulate(conditions, folder)
    with Ledger(disk.ledger) as ledger:
        problems = disk.found + ledger.verify(max_steps_off_policy=conditions.bound)
        rollouts = ledger.rollouts()
    problems += [f"{one.id} is {one.state} at the end" for one in rollouts if one.state not in FINAL_STATES]
    trained = [one for one in rollouts if one.state is RolloutState.TRAINED]
    problems += [f"{one.id} failed, and was trained" for one in trained if one.id in disk.failed]

    steps_of_place: dict[int, set[int | None]] = defaultdict(set)
    for one in trained:
        steps_of_place[_place(one.id)].add(one.step)
    problems += [f"group {place} was trained in {steps}" for place, steps in steps_of_place.items() if len(steps) > 1]
    members = [(_place(one.id), one.attempt) for one in trained]
    problems += [f"{member} was trained twice" for member in set(members) if members.count(member) > 1]
    # A run that dies after its last checkpoint has nothing more to train: what that one holds as in play stays unplayed.
    last = json.loads(disk.checkpoints[conditions.num_steps])
    seen = {_place(one.id) for one in rollouts if one.reason is not DiscardReason.REWOUND}
    seen |= {place for place, _ in last["outstanding"]}
    problems += [f"group {place} was skipped" for place in range(max(steps_of_place, default=-1)) if place not in seen]

    if {one.step for one in trained} != set(range(1, conditions.num_steps + 1)):
        problems.append(f"steps {sorted({one.step or 0 for one in trained})} were trained")
    if weights != _replayed(disk):
        problems.append("the ledger's order of claims does not lead to these weights")
    if conditions.bound == 0 and conditions.deaths:
        alone, _ = simulate(Conditions(**{**vars(conditions), "deaths": ()}), folder)
        if weights != alone:
            problems.append("the weights are not those of a run that was not interrupted")
    return problems


def _place(rollout_id: str) -> int:
    return int(rollout_id.split("/")[1].rpartition("-")[2])


def _replayed(disk: Disk) -> str:
    """The weights that follow from what the ledger records as consumed, in its order."""
    with Ledger(disk.ledger) as ledger:
        order = ledger.consumed()
    weights = "start"
    for step in sorted(order):
        weights = digest(weights, [disk.contents[rollout_id] for rollout_id in order[step]])
    return weights
