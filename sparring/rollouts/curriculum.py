"""The curriculum, which selects the next task so that each kind of task keeps its share, and time is spent on tasks
from which the policy can learn.

Each kind of task has its own epochs, and each epoch is a new permutation that is derived from the seed. The configured
shares determine which kind is next, and the next task of this kind is offered. The recent success rate of the offered
task determines whether it is also rolled out:

    all        every task
    mixed      tasks that succeed sometimes, and occasionally the others, since the policy changes
    frontier   a task more often the closer its success rate is to 1/2, at which rewards vary most

A task that has not been rolled out before is selected by the recent success rate of its kind, compared with the other
kinds, so that a mixture of many tasks concentrates on the kinds from which the policy can learn. So are all tasks, if
tasks of a kind are offered in blocks.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from sparring.errors import DataError
from sparring.rollouts.offers import Means, Offers, Result, mean_of, offered_metrics
from sparring.rollouts.plan import GroupPlan
from sparring.runtime.logs import get_logger
from sparring.types import Json, Sampling, Task, TrajectoryGroup

logger = get_logger(__name__)

Select: TypeAlias = Literal["all", "mixed", "frontier"]
MOST_RESTING = 0.9
"""The share of resting tasks above which a warning is logged."""


def read_task_kind(task: Task, field: str) -> str:
    """Return the kind of a task, which is the value of one of its fields. Raises DataError if the field is not a word
    or a number."""
    value = task.fields.get(field)
    if not isinstance(value, str | int | float) or value == "":
        raise DataError(
            f"task {task.id!r} has {field!r} = {value!r}. curriculum.kind_field uses this field as the kind of a task: set "
            f"it to a word or a number. The fields of the task are {', '.join(map(repr, sorted(task.fields))) or 'none'}."
        )
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSelection:
    """The rule that selects which offered tasks are rolled out, based on the success rate of their latest episodes."""

    select: Select
    easy_threshold: float
    hard_threshold: float
    """With `mixed`, a task rests unless its success rate is between the two thresholds."""
    retry_share: float
    """The share of offers for which a resting task is rolled out nevertheless."""
    history_groups: int
    """The number of latest groups from which the success rate of a task is computed, and of latest steps from which that
    of a kind is."""
    success_threshold: float
    """The reward at or above which an episode counts as a success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKinds:
    """The field of a task that names its kind (None if all tasks are of one kind), and the relative share of each
    kind."""

    field: str | None = None
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    block_size: int = 1
    """The number of tasks of a kind that are offered in succession. Above 1, whole blocks are selected, by the success rate of
    their kind."""


@final
class Curriculum(Iterator[GroupPlan]):
    """Iterates over plans of training groups, until each task has been offered `max_epochs` times on average.

    The choices depend only on the seed and the recorded groups, so a synchronous run that is resumed with `state`
    continues as it would have without the interruption.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        max_epochs: int,
        group_size: int,
        sampling: Sampling,
        selection: TaskSelection,
        kinds: TaskKinds,
        label: str = "",
    ) -> None:
        """Create a curriculum. `label` distinguishes these rollouts from earlier rollouts at the same position. Raises
        DataError for a task without a kind, and for weights of kinds that no task has."""
        self._selection = selection
        self._seed, self._group_size, self._sampling, self._label = seed, group_size, sampling, label
        self._kind_of = {task.id: "" if kinds.field is None else read_task_kind(task, kinds.field) for task in tasks}
        self._kinds: dict[str, list[Task]] = {}
        for task in tasks:
            self._kinds.setdefault(self._kind_of[task.id], []).append(task)
        unknown = sorted(kinds.weights.keys() - self._kinds.keys())
        if unknown:
            raise DataError(
                f"curriculum.kind_weights names {', '.join(map(repr, unknown))}, but no training task has this value of "
                f"{kinds.field!r}. The values are {', '.join(map(repr, sorted(self._kinds)))}."
            )
        self._weights = {kind: kinds.weights.get(kind, 1.0) for kind in sorted(self._kinds)}
        self._block_size = kinds.block_size
        self._tasks = {task.id: task for task in tasks}
        self._num_tasks, self._most_offers = len(tasks), max_epochs * len(tasks)
        self._has_warned = False
        self._orders: dict[str, tuple[int, list[int]]] = {}
        """The current epoch of each kind, with the order of its tasks in this epoch."""
        self._offered: Counter[str] = Counter()
        self._num_played = 0
        self._recorded: tuple[dict[str, int], int] = ({}, 0)
        """Both counts when the last step was recorded."""
        self._history: dict[str, deque[Result]] = {}
        """The results of the latest groups of each task."""
        self._kind_history: dict[str, deque[Result]] = {}
        """The results of the latest steps of each kind."""
        self._kind_shares: dict[str, float] = {}
        """The share of the offers of each kind's new tasks that are rolled out."""
        self._num_resting_kinds = 0
        self._resting: set[str] = set()
        self._offers: dict[int, Offers] = {}
        """The offers for which the planned groups stand, by position."""
        self._oldest = 0
        """The first position of the last recorded step."""
        self._offered_means: dict[str, float] = {}

    @property
    def epoch(self) -> float:
        """The average number of times that each task has been offered so far."""
        return self._offered.total() / self._num_tasks

    def __next__(self) -> GroupPlan:
        skipped: list[Means] = []
        while self._offered.total() < self._most_offers:
            kind = self._next_kind()
            task = self._offer(kind)
            share = self._share(task.id)
            if share < 1 and self._draw(kind) >= share:
                skipped.append(self._expected(task.id))
                continue
            position, self._num_played = self._num_played, self._num_played + 1
            self._offers[position] = Offers.after(skipped, share=share, expected=self._expected(task.id))
            return self.again(task, position)
        raise StopIteration

    def again(self, task: Task, position: int) -> GroupPlan:
        """Return the plan of a group that was offered before, at the same position, with rollout ids of this
        process."""
        return GroupPlan(
            task=task,
            position=position,
            group_size=self._group_size,
            sampling=self._sampling,
            split="train",
            label=f"{self._label}{position}",
        )

    def played_again(self, outstanding: Iterable[tuple[int, str]]) -> tuple[GroupPlan, ...]:
        """Return the plans of the groups that were running when a checkpoint was written. `outstanding` contains
        (position, task id) pairs."""
        return tuple(self.again(self._tasks[task_id], position) for position, task_id in outstanding)

    def record(self, groups: Sequence[TrajectoryGroup], replaced: Sequence[TrajectoryGroup] = ()) -> None:
        """Record that a step was trained on these groups, and how often their tasks succeeded (with a reward of at
        least `success_threshold`). `replaced` contains the groups that others of the step replaced."""
        self._recorded = (dict(self._offered), self._num_played)
        self._offered_means = offered_metrics(self._with_offers(groups), self._with_offers(replaced))
        played = [group for group in (*groups, *replaced) if group.trajectories]
        # What is left of older groups is that of lost and stale ones.
        self._offers = {position: offers for position, offers in self._offers.items() if position >= self._oldest}
        self._oldest = min((group.position for group in played if group.position is not None), default=self._oldest)
        if self._selection.select == "all":
            return
        of_kinds: dict[str, list[TrajectoryGroup]] = {}
        for group in played:
            task_id = group.task.id
            self._history.setdefault(task_id, self._latest()).append(self._result([group]))
            of_kinds.setdefault(self._kind_of[task_id], []).append(group)
            if self._rests(task_id):
                self._resting.add(task_id)
            else:
                self._resting.discard(task_id)
        for kind, of_kind in of_kinds.items():
            self._kind_history.setdefault(kind, self._latest()).append(self._result(of_kind))
        self._compare_kinds()
        seen, resting = len(self._history), len(self._resting)
        if not self._has_warned and self._offered.total() >= self._num_tasks and resting > MOST_RESTING * seen:
            self._has_warned = True
            logger.warning(
                "%d of the %d tasks that ran rest, because nearly all or nearly none of their episodes have a reward of at least "
                "evaluation.success_threshold = %g. A resting task is rolled out in a share of %g of its offers. "
                "If this is not intended, set the threshold to the reward of a success, or remove curriculum.select.",
                resting,
                seen,
                self._selection.success_threshold,
                self._selection.retry_share,
            )

    def metrics(self) -> dict[str, float]:
        """Return the number of tasks with a history, the number of resting ones among them, the number of kinds whose new
        tasks rest, the share of offers that were skipped, and the mean reward and score that the last step would have had
        without a choice among tasks."""
        if self._selection.select == "all":
            return self._offered_means
        offered = self._offered.total()
        return {
            **self._offered_means,
            "rollout/curriculum/seen_tasks": float(len(self._history)),
            "rollout/curriculum/resting_tasks": float(len(self._resting)),
            "rollout/curriculum/resting_kinds": float(self._num_resting_kinds),
            "rollout/curriculum/passed_over": 1 - self._num_played / offered if offered else 0.0,
        }

    def state(self) -> dict[str, Json]:
        """Return the state after the last recorded step, for a checkpoint."""
        offered, num_played = self._recorded
        return {
            "offered": offered,
            "num_played": num_played,
            "history": {task_id: [list(one) for one in kept] for task_id, kept in self._history.items()},
            "kind_history": {kind: [list(one) for one in kept] for kind, kept in self._kind_history.items()},
            "offers": {str(position): offers.as_json() for position, offers in self._offers.items()},
        }

    def restore(self, state: Mapping[str, Json]) -> None:
        """Continue from a state that `state` returned."""
        self._offered, self._num_played = Counter(state["offered"]), int(state["num_played"])
        self._recorded = (dict(self._offered), self._num_played)
        self._history = {task_id: self._latest(kept) for task_id, kept in state["history"].items()}
        self._offers = {int(position): Offers.from_json(one) for position, one in state.get("offers", {}).items()}
        # Missing in checkpoints of earlier versions.
        self._kind_history = {kind: self._latest(kept) for kind, kept in state.get("kind_history", {}).items()}
        self._compare_kinds()
        self._resting = set(filter(self._rests, self._history))

    def _with_offers(self, groups: Sequence[TrajectoryGroup]) -> list[tuple[TrajectoryGroup, Offers]]:
        return [
            (group, Offers() if group.position is None else self._offers.pop(group.position, Offers()))
            for group in groups
            if group.trajectories
        ]

    def _latest(self, results: Iterable[Sequence[float]] = ()) -> deque[Result]:
        """Return a history with these results, which keeps the latest ones."""
        return deque((Result.read(one) for one in results), maxlen=self._selection.history_groups)

    def _result(self, groups: Sequence[TrajectoryGroup]) -> Result:
        return Result.of(groups, self._selection.success_threshold)

    def _expected(self, task_id: str) -> Means:
        """Return the latest means of a task, or of its kind if the task has not been rolled out."""
        return mean_of(self._history.get(task_id) or self._kind_history.get(self._kind_of[task_id]) or ())

    def _next_kind(self) -> str:
        """Return the kind whose block is not complete, or else the kind whose share is furthest behind (stride scheduling);
        among equals, the first by name.

        Every offer counts, whether or not it is rolled out, so a kind whose tasks rest leaves its time to the others.
        """
        for kind in self._weights:  # not self._offered, which may have kinds of a parent run
            if self._offered[kind] % self._block_size:
                return kind
        return min(self._weights, key=lambda kind: (self._offered[kind] + self._block_size) / self._weights[kind])

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
        """Return the share of offers of a task that are rolled out."""
        if self._selection.select == "all":
            return 1.0
        kept = self._history.get(task_id) if self._block_size == 1 else None
        return self._kind_shares.get(self._kind_of[task_id], 1.0) if not kept else self._share_at(kept)

    def _rests(self, task_id: str) -> bool:
        """Return whether a task with a history rests. In a block, it runs or rests with its kind."""
        return self._block_size == 1 and self._share(task_id) <= self._selection.retry_share

    def _share_at(self, history: Sequence[Result]) -> float:
        """Return the share of offers that are rolled out after these results."""
        rate = sum(one.successes for one in history) / sum(one.episodes for one in history)
        if self._selection.select == "mixed":
            has_signal = self._selection.hard_threshold < rate < self._selection.easy_threshold
            return 1.0 if has_signal else self._selection.retry_share
        return max(self._selection.retry_share, 4 * rate * (1 - rate))

    def _compare_kinds(self) -> None:
        """Set the shares of the kinds. A kind with too short a history keeps its whole share. The shares are relative to the
        largest, because a kind that rests leaves its time to the others, and there may be no others with more signal."""
        shares = {
            kind: self._share_at(kept) if len(kept) == self._selection.history_groups else 1.0
            for kind, kept in self._kind_history.items()
        }
        largest = 1.0 if len(shares) < len(self._kinds) else max(shares.values())
        self._kind_shares = {kind: share / largest for kind, share in shares.items()}
        least = self._selection.retry_share
        self._num_resting_kinds = sum(share <= least < largest for share in shares.values())

    def _draw(self, kind: str) -> float:
        """Return a number from 0 to 1 for the task that was just offered. All tasks of a block have the same number, so that
        the block runs or rests as a whole."""
        block = -(-self._offered[kind] // self._block_size)
        return random.Random(f"{self._seed}/{kind}/offer {block}").random()
