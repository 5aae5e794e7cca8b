"""The curriculum: which task is played next, so that kinds keep their share and time goes where there is something to learn.

Every kind of task has epochs of its own, each a new permutation that follows from the seed. Whose turn it is follows
from the shares wanted; whether the task that is offered is also played, from how often it succeeded of late:

    all        every task
    mixed      tasks that succeed sometimes; the others every now and then, since the policy changes
    frontier   the more often, the nearer to every second episode a task succeeds, where rewards vary most
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, final

from sparring.errors import DataError
from sparring.logs import get_logger
from sparring.rollouts.collector import GroupPlan
from sparring.types import Json, Sampling, Task, TrajectoryGroup

logger = get_logger(__name__)

Select: TypeAlias = Literal["all", "mixed", "frontier"]
MOST_RESTING = 0.9
"""Share of tasks that rest from which on a warning says so."""


def task_kind(task: Task, field: str) -> str:
    """The kind of a task, which one of its fields says. Raises DataError when that is no word or number."""
    value = task.fields.get(field)
    if not isinstance(value, str | int | float) or value == "":
        raise DataError(
            f"task {task.id!r} has {field!r} = {value!r}, which curriculum.kind_field names as its kind; give it a word or a "
            f"number. Its fields are {', '.join(map(repr, sorted(task.fields))) or 'none'}."
        )
    return str(value)


@final
class Curriculum(Iterator[GroupPlan]):
    """Plans of training groups, until every task was offered `max_epochs` times on average.

    What it draws follows from the seed and from what `record` was told, so a synchronous run that is resumed with
    `state` goes on as the uninterrupted one would.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        max_epochs: int,
        group_size: int,
        sampling: Sampling,
        select: Select,
        easy_threshold: float,
        hard_threshold: float,
        retry_share: float,
        history_groups: int,
        success_threshold: float,
        kind_field: str | None,
        kind_weights: Mapping[str, float],
        label: str = "",
    ) -> None:
        """`label` sets rollouts apart from earlier ones of the same place. Raises DataError for a task without kind, and
        for weights of kinds that no task has."""
        self._select: Select = select
        self._easy, self._hard, self._retry_share = easy_threshold, hard_threshold, retry_share
        self._history_groups, self._success_threshold = history_groups, success_threshold
        self._seed, self._group_size, self._sampling, self._label = seed, group_size, sampling, label
        self._kinds: dict[str, list[Task]] = {}
        for task in tasks:
            self._kinds.setdefault("" if kind_field is None else task_kind(task, kind_field), []).append(task)
        unknown = sorted(kind_weights.keys() - self._kinds.keys())
        if unknown:
            raise DataError(
                f"curriculum.kind_weights names {', '.join(map(repr, unknown))}, but no training task has that as its "
                f"{kind_field!r}; there are {', '.join(map(repr, sorted(self._kinds)))}."
            )
        self._weights = {kind: kind_weights.get(kind, 1.0) for kind in sorted(self._kinds)}
        self._tasks = {task.id: task for task in tasks}
        self._num_tasks, self._most_offers = len(tasks), max_epochs * len(tasks)
        self._has_warned = False
        self._orders: dict[str, tuple[int, list[int]]] = {}
        """Of each kind its epoch under way, and the order of its tasks in it."""
        self._offered: Counter[str] = Counter()
        self._num_played = 0
        self._recorded: tuple[dict[str, int], int] = ({}, 0)
        """Both as they were when the last step was recorded."""
        self._history: dict[str, deque[tuple[int, int]]] = {}
        """Of each task the last groups: how many of how many members succeeded."""
        self._resting: set[str] = set()

    @property
    def epoch(self) -> float:
        """How often every task was offered so far, on average."""
        return self._offered.total() / self._num_tasks

    def __next__(self) -> GroupPlan:
        while self._offered.total() < self._most_offers:
            # Whose share is the furthest behind (stride scheduling); the first by name among equals. Offers count, played
            # or not, so that a kind whose tasks rest leaves its time to the others.
            kind = min(self._weights, key=lambda kind: (self._offered[kind] + 1) / self._weights[kind])
            task = self._offer(kind)
            share = self._share(task.id)
            if share < 1 and self._draw(kind) >= share:
                continue
            position, self._num_played = self._num_played, self._num_played + 1
            return self.again(task, position)
        raise StopIteration

    def again(self, task: Task, position: int) -> GroupPlan:
        """The plan of a group that was offered before, at its place, under the names of this process."""
        return GroupPlan(
            task=task, position=position, group_size=self._group_size, sampling=self._sampling, split="train",
            label=f"{self._label}{position}",
        )  # fmt: skip

    def played_again(self, outstanding: Iterable[tuple[int, str]]) -> tuple[GroupPlan, ...]:
        """The plans of groups that were in play when a checkpoint was written: (position, id of the task) of each."""
        return tuple(self.again(self._tasks[task_id], position) for position, task_id in outstanding)

    def record(self, groups: Iterable[TrajectoryGroup]) -> None:
        """Remember that a step was trained on these groups, and how often their tasks succeeded: a reward of at least
        `success_threshold`."""
        self._recorded = (dict(self._offered), self._num_played)
        if self._select == "all":
            return
        for group in groups:
            rewards, task_id = group.rewards, group.task.id
            if not rewards:
                continue
            kept = self._history.setdefault(task_id, deque(maxlen=self._history_groups))
            kept.append((sum(reward >= self._success_threshold for reward in rewards), len(rewards)))
            if self._share(task_id) <= self._retry_share:
                self._resting.add(task_id)
            else:
                self._resting.discard(task_id)
        seen, resting = len(self._history), len(self._resting)
        if not self._has_warned and self._offered.total() >= self._num_tasks and resting > MOST_RESTING * seen:
            self._has_warned = True
            logger.warning(
                "%d of %d tasks rest, since nearly all or nearly none of their episodes have a reward of at least "
                "evaluation.success_threshold = %g; they are played %g of the time. If that is not meant, set the threshold to "
                "what counts as a success, or leave curriculum.select out.",
                resting, seen, self._success_threshold, self._retry_share,
            )  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """How many tasks have a history, how many rest, and what share of offers was passed over so far."""
        if self._select == "all":
            return {}
        offered = self._offered.total()
        return {
            "rollout/curriculum/seen_tasks": float(len(self._history)),
            "rollout/curriculum/resting_tasks": float(len(self._resting)),
            "rollout/curriculum/passed_over": 1 - self._num_played / offered if offered else 0.0,
        }

    def state(self) -> dict[str, Json]:
        """What a checkpoint keeps: how things stood after the last recorded step."""
        offered, num_played = self._recorded
        return {
            "offered": offered,
            "num_played": num_played,
            "history": {task_id: [list(pair) for pair in kept] for task_id, kept in self._history.items()},
        }

    def restore(self, state: Mapping[str, Json]) -> None:
        """Go on after `state`."""
        self._offered, self._num_played = Counter(state["offered"]), int(state["num_played"])
        self._recorded = (dict(self._offered), self._num_played)
        self._history = {
            task_id: deque(((right, count) for right, count in kept), maxlen=self._history_groups)
            for task_id, kept in state["history"].items()
        }
        self._resting = {task_id for task_id in self._history if self._share(task_id) <= self._retry_share}

    def _offer(self, kind: str) -> Task:
        tasks = self._kinds[kind]
        epoch, place = divmod(self._offered[kind], len(tasks))
        if self._orders.get(kind, (-1, []))[0] != epoch:
            order = list(range(len(tasks)))
            random.Random("/".join(filter(None, (str(self._seed), kind, str(epoch))))).shuffle(order)
            self._orders[kind] = (epoch, order)
        self._offered[kind] += 1
        return tasks[self._orders[kind][1][place]]

    def _share(self, task_id: str) -> float:
        """How often a task is played when its turn comes."""
        kept = self._history.get(task_id)
        if self._select == "all" or not kept:
            return 1.0
        rate = sum(right for right, _ in kept) / sum(count for _, count in kept)
        if self._select == "mixed":
            return 1.0 if self._hard < rate < self._easy else self._retry_share
        return max(self._retry_share, 4 * rate * (1 - rate))

    def _draw(self, kind: str) -> float:
        return random.Random(f"{self._seed}/{kind}/offer {self._offered[kind]}").random()
