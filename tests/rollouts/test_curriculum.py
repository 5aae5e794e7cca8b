"""Which tasks are played: epochs, shares of kinds, what success decides, and the same again after a resume."""

import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.errors import DataError
from sparring.rollouts import Curriculum, GroupPlan, TaskKinds, TaskSelection
from sparring.rollouts.offers import Means, Offers, offered_metrics
from sparring.types import Outcome, Reward, Sampling, Task, Trajectory, TrajectoryGroup


def tasks_of(**sizes: int) -> list[Task]:
    return [
        Task(id=f"{kind}{number}", messages=({"role": "user", "content": "?"},), fields={"kind": kind})
        for kind, size in sizes.items()
        for number in range(size)
    ]


def curriculum(tasks: list[Task], **changes: Any) -> Curriculum:
    """A curriculum of 2 epochs with groups of 4; `changes` are settings by name, also those within its values."""
    kinds = TaskKinds(
        field=changes.pop("kind_field", None),
        weights=changes.pop("kind_weights", {}),
        block_size=changes.pop("kind_block_size", 1),
    )
    settings_ = {"seed": 0, "max_epochs": 2, "group_size": 4, "sampling": Sampling()}
    settings_ |= {name: changes.pop(name) for name in [*changes] if name in settings_}
    selection = TaskSelection(
        select="all", easy_threshold=1.0, hard_threshold=0.0, retry_share=0.1, history_groups=2, success_threshold=1.0
    )
    return Curriculum(tasks, selection=replace(selection, **changes), kinds=kinds, **settings_)


def played(task: Task, rate: float, size: int = 4, position: int | None = None) -> TrajectoryGroup:
    right = round(rate * size)
    members = [
        Trajectory(
            id=f"{task.id}-{member}",
            task=task,
            attempt=member,
            turns=(),
            messages=(),
            outcome=Outcome.FINISHED,
            reward=Reward(total=float(member < right)),
            score=None,
        )
        for member in range(size)
    ]
    return TrajectoryGroup(task=task, trajectories=tuple(members), position=position)


def ids(plans: list[GroupPlan]) -> list[str]:
    return [plan.task.id for plan in plans]


def test_every_task_is_played_once_an_epoch_each_epoch_in_another_order() -> None:
    plans = list(curriculum(tasks_of(a=20), max_epochs=3))
    epochs = [ids(plans[start : start + 20]) for start in (0, 20, 40)]
    assert [len(plans), *map(len, map(set, epochs))] == [60, 20, 20, 20]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert [plan.position for plan in plans] == list(range(60))
    assert ids(list(curriculum(tasks_of(a=20), max_epochs=3))) == ids(plans)
    assert ids(list(curriculum(tasks_of(a=20), max_epochs=3, seed=1))) != ids(plans)


def test_kinds_are_played_in_equal_shares_however_many_tasks_they_have() -> None:
    plans = list(itertools.islice(curriculum(tasks_of(big=90, small=3), kind_field="kind"), 30))
    kinds = [plan.task.fields["kind"] for plan in plans]
    assert kinds == ["big", "small"] * 15
    # 15 plays of 3 tasks: five epochs of the small kind.
    assert Counter(ids(plans[1::2])) == {"small0": 5, "small1": 5, "small2": 5}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(1, 60))
def test_at_every_moment_no_kind_is_a_whole_play_off_its_share(weights: list[int], count: int) -> None:
    names = [f"k{number}" for number in range(len(weights))]
    order = curriculum(
        tasks_of(**dict.fromkeys(names, 7)),
        max_epochs=100,
        kind_field="kind",
        kind_weights=dict(zip(names, map(float, weights), strict=True)),
    )
    found = Counter(plan.task.fields["kind"] for plan in itertools.islice(order, count))
    for name, weight in zip(names, weights, strict=True):
        # Stride scheduling: a kind lags by less than one play; it leads by less than one for each other kind.
        assert -1 < found[name] - count * weight / sum(weights) < len(names)


def test_a_block_has_tasks_of_one_kind_and_kinds_keep_their_shares() -> None:
    tasks = tasks_of(a=5, b=5, c=5)
    order = curriculum(tasks, max_epochs=8, kind_field="kind", kind_weights={"b": 2.0}, kind_block_size=4)
    plans = list(itertools.islice(order, 96))
    blocks = [[plan.task.fields["kind"] for plan in plans[start : start + 4]] for start in range(0, 96, 4)]
    assert [len(set(block)) for block in blocks] == [1] * 24
    assert Counter(block[0] for block in blocks) == {"a": 6, "b": 12, "c": 6}
    assert [block[0] for block in blocks[:4]] == ["b", "a", "b", "c"]
    # Each kind still has its own epochs.
    assert set(Counter(plan.task.id for plan in plans if plan.task.fields["kind"] == "b").values()) <= {9, 10}


@pytest.mark.parametrize("select", ["mixed", "frontier"])
@pytest.mark.parametrize("size", [16, 800])
def test_a_block_runs_or_rests_as_a_whole(select: str, size: int) -> None:
    """Also in later epochs, when each task has a history of its own."""
    rates = {"never": 0.0, "often": 0.5}
    tasks = tasks_of(never=size, often=size)
    order = curriculum(tasks, select=select, max_epochs=100, kind_field="kind", kind_block_size=8, history_groups=1)
    kinds = []
    for _ in range(60):
        plans = list(itertools.islice(order, 8))
        order.record([played(plan.task, rates[plan.task.fields["kind"]]) for plan in plans])
        kinds.append({plan.task.fields["kind"] for plan in plans})
    assert all(len(of_step) == 1 for of_step in kinds)
    # A tenth of the blocks of a kind that never succeeds runs.
    assert 1 <= kinds.count({"never"}) <= 15


def test_a_branch_may_name_kinds_that_its_parent_did_not_have() -> None:
    parent = curriculum(tasks_of(a=20, b=20))
    parent.record([played(next(parent).task, 0.5) for _ in range(12)])
    child = curriculum(tasks_of(a=20, b=20), kind_field="kind", kind_block_size=8)
    child.restore(parent.state())
    assert [next(child).task.fields["kind"] for _ in range(16)] == ["a"] * 8 + ["b"] * 8


def shares(rate: float, *, epochs: int = 400, **changes: Any) -> float:
    """How often a task with that success is played when its turn comes, once it has a history."""
    (task,) = tasks_of(a=1)
    order = curriculum([task], max_epochs=epochs, **changes)
    order.record([played(next(order).task, rate)])
    return len(list(order)) / (epochs - 1)


@pytest.mark.parametrize(
    ("select", "rate", "expected"),
    [
        ("all", 0.0, 1.0),
        ("mixed", 0.0, 0.1),
        ("mixed", 1.0, 0.1),
        ("mixed", 0.25, 1.0),
        ("mixed", 0.75, 1.0),
        # 4 * 1/4 * 3/4 = 0.75; 4 * 1/2 * 1/2 = 1.
        ("frontier", 0.25, 0.75),
        ("frontier", 0.5, 1.0),
        ("frontier", 0.75, 0.75),
        ("frontier", 1.0, 0.1),
    ],
)
def test_success_decides_how_often_a_task_is_played(select: str, rate: float, expected: float) -> None:
    # 399 draws have a standard deviation below 0.025.
    assert shares(rate, select=select) == pytest.approx(expected, abs=0.075 if 0 < expected < 1 else 0)


def test_thresholds_say_what_is_too_easy_and_too_hard() -> None:
    assert shares(0.75, select="mixed", easy_threshold=0.75) < 0.2
    assert shares(0.25, select="mixed", hard_threshold=0.25) < 0.2
    assert shares(0.25, select="mixed", hard_threshold=0.2) == 1


def test_only_the_last_groups_count_so_a_task_that_starts_to_succeed_comes_back() -> None:
    (task,) = tasks_of(a=1)
    order = curriculum([task], max_epochs=1000, select="mixed", history_groups=2)
    order.record([played(task, 0.0), played(task, 0.0)])
    assert order.metrics()["rollout/curriculum/resting_tasks"] == 1
    order.record([played(task, 0.5)])
    assert order.metrics()["rollout/curriculum/resting_tasks"] == 0
    order.record([played(task, 1.0), played(task, 1.0)])
    assert order.metrics()["rollout/curriculum/resting_tasks"] == 1


def test_a_kind_whose_tasks_all_rest_leaves_its_time_to_the_others() -> None:
    tasks = tasks_of(easy=20, mixed=20)
    order = curriculum(tasks, max_epochs=10, select="mixed", kind_field="kind")
    plays = Counter()
    for plan in order:
        kind = plan.task.fields["kind"]
        plays[kind] += 1
        order.record([played(plan.task, 1.0 if kind == "easy" else 0.5)])
    # Ten epochs of the one; of the other the first two tasks, and then a tenth of 198 offers.
    assert plays["mixed"] == 200
    assert 10 <= plays["easy"] <= 34


def share_of_new_tasks(rates: dict[str, float], *, steps: int = 2, **changes: Any) -> dict[str, float]:
    """How often a task that has not been rolled out is played, by kind, after steps with a group of each of these kinds."""
    size = 402
    order = curriculum(tasks_of(**dict.fromkeys(rates, size)), max_epochs=1, kind_field="kind", **changes)
    for _ in range(steps):
        plans = list(itertools.islice(order, len(rates)))
        order.record([played(plan.task, rates[plan.task.fields["kind"]]) for plan in plans])
    rest = Counter(plan.task.fields["kind"] for plan in order)
    return {kind: rest[kind] / (size - steps) for kind in rates}


@pytest.mark.parametrize(
    ("select", "rates", "expected"),
    [
        ("all", {"a": 0.5, "b": 0.0}, {"a": 1, "b": 1}),
        ("mixed", {"a": 0.25, "b": 0.0, "c": 1.0}, {"a": 1, "b": 0.1, "c": 0.1}),
        # 4 * 1/4 * 3/4 = 0.75.
        ("frontier", {"a": 0.5, "b": 0.75, "c": 0.0}, {"a": 1, "b": 0.75, "c": 0.1}),
        # Relative to the largest share, 0.75.
        ("frontier", {"a": 0.25, "b": 0.0}, {"a": 1, "b": 0.1 / 0.75}),
        # There is no other kind to which these could leave their time.
        ("mixed", {"a": 0.0, "b": 1.0}, {"a": 1, "b": 1}),
        ("frontier", {"a": 0.0}, {"a": 1}),
    ],
)
def test_a_new_task_is_selected_by_its_kind_compared_with_the_others(
    select: str, rates: dict[str, float], expected: dict[str, float]
) -> None:
    found = share_of_new_tasks(rates, select=select)
    for kind, share in expected.items():
        # 400 draws have a standard deviation of at most 0.025.
        assert found[kind] == pytest.approx(share, abs=0.075 if share < 1 else 0)


def test_a_kind_keeps_its_share_until_its_history_is_long_enough() -> None:
    assert share_of_new_tasks({"a": 0.5, "b": 0.0}, select="mixed", steps=1) == {"a": 1, "b": 1}


def test_a_step_counts_once_for_its_kind_however_many_groups_it_had_and_with_those_that_were_replaced() -> None:
    order = curriculum(tasks_of(a=9, b=9), select="mixed", kind_field="kind")
    tasks = [next(order).task for _ in range(8)]
    assert [task.fields["kind"] for task in tasks[:2]] == ["a", "b"]
    # Replaced groups are recorded after the others, and none of them succeeds.
    order.record(
        [played(task, rate) for task, rate in zip(tasks, [0.5, 1.0, 0.25, 1.0, 0.0, 0.5, 0.0, 0.0], strict=True)]
    )
    assert order.state()["kind_history"] == {"a": [[3, 16, 3.0, 0.0]], "b": [[10, 16, 10.0, 0.0]]}


@pytest.mark.parametrize(
    ("select", "rates", "resting"),
    [
        ("mixed", {"a": 0.0, "b": 0.5, "c": 1.0}, 2),
        ("frontier", {"a": 0.0, "b": 0.25, "c": 0.75}, 1),
        ("frontier", {"a": 0.0, "b": 0.0, "c": 1.0}, 0),  # nothing to rest in favor of
    ],
)
def test_kinds_whose_new_tasks_rest_are_counted(select: str, rates: dict[str, float], resting: int) -> None:
    order = curriculum(tasks_of(**dict.fromkeys(rates, 20)), select=select, kind_field="kind", history_groups=1)
    order.record([played(plan.task, rates[plan.task.fields["kind"]]) for plan in itertools.islice(order, 3)])
    metrics = order.metrics()
    assert metrics["rollout/curriculum/resting_kinds"] == resting


@pytest.mark.parametrize("select", ["all", "mixed", "frontier"])
@pytest.mark.parametrize(("kind_field", "block_size"), [(None, 1), ("kind", 1), ("kind", 4)])
@pytest.mark.parametrize("refills", [False, True])
@pytest.mark.parametrize("ahead", [0, 2])
def test_the_mean_of_offered_tasks_does_not_depend_on_the_selection(
    select: str, kind_field: str | None, block_size: int, *, refills: bool, ahead: int
) -> None:
    """A policy that does not change: the estimate keeps its value, also if groups are planned `ahead` steps before they are
    trained on, and some of them are lost."""
    rates, sizes, rng = (
        {"never": 0.0, "rarely": 0.1, "often": 0.6},
        {"never": 60, "rarely": 30, "often": 10},
        random.Random(0),
    )
    order = curriculum(
        tasks_of(**sizes), select=select, max_epochs=400, kind_field=kind_field, kind_block_size=block_size
    )
    weights = dict.fromkeys(sizes, 1 / 3) if kind_field else {kind: size / 100 for kind, size in sizes.items()}
    expected = sum(weight * rates[kind] for kind, weight in weights.items())
    selected, offered, waiting = [], [], []

    def step() -> bool:
        kept: list[TrajectoryGroup] = []
        replaced: list[TrajectoryGroup] = []
        while len(kept) < 4:
            while len(waiting) <= 4 * ahead:
                if (plan := next(order, None)) is None:
                    return False
                waiting.append(plan)
            plan = waiting.pop(0)
            right = sum(rng.random() < rates[plan.task.fields["kind"]] for _ in range(4))
            group = played(plan.task, right / 4, position=plan.position)
            if rng.random() < 0.1:
                continue  # lost
            (replaced if refills and right in (0, 4) else kept).append(group)
        order.record(kept, replaced)
        selected.append(fmean(reward for group in kept for reward in group.rewards))
        offered.append(order.metrics().get("rollout/reward/offered_mean", selected[-1]))
        return True

    while step():
        pass
    late = len(offered) // 4  # the selection has a history by then
    error = stdev(offered[late:]) / (len(offered) - late) ** 0.5
    assert error < 0.005
    # Small steps are too high, by an eighth at most with four groups.
    assert expected - 3 * error < fmean(offered[late:]) < 1.13 * expected + 3 * error
    if select != "all" or refills:
        assert fmean(selected[late:]) > expected + 0.1


def test_groups_stand_for_the_offers_that_were_skipped_by_hand() -> None:
    hard, fair = (played(task, rate) for task, rate in zip(tasks_of(hard=1, fair=1), (0.25, 0.5), strict=True))
    skips = Offers.after([Means(0.1), Means(0.2)], share=0.1, expected=Means(0.05))
    simple = Offers(share=0.5, expected=Means(0.4))
    # 0.1 + 0.2 + 0.05 + (0.25 - 0.05) / 0.1 = 2.35 for three offers; 0.4 + (0.5 - 0.4) / 0.5 = 0.6 for one.
    found = offered_metrics([(hard, skips), (fair, simple)])
    assert found == {"rollout/reward/offered_mean": pytest.approx(2.95 / 4)}  # and no score, because there is no scorer
    # A replaced group counts like the others: 2.35 + 0.5 + 0.6 for five offers.
    found = offered_metrics([(hard, skips), (fair, Offers())], [(fair, simple)])
    assert found["rollout/reward/offered_mean"] == pytest.approx(3.45 / 5)
    assert offered_metrics([(hard, Offers()), (fair, Offers())]) == {}  # nothing was chosen


def test_offers_of_groups_in_play_are_in_the_state() -> None:
    order = curriculum(tasks_of(a=8), select="mixed", max_epochs=50)
    for _ in range(8):
        plan = next(order)
        order.record([played(plan.task, 0.5 if plan.task.id in ("a0", "a1") else 0.0, position=plan.position)])
    ahead = [next(order) for _ in range(3)]
    state = json.loads(json.dumps(order.state()))
    again = curriculum(tasks_of(a=8), select="mixed", max_epochs=50)
    again.restore(state)
    groups = [played(plan.task, 0.5, position=plan.position) for plan in ahead]
    for one in (order, again):
        one.record(groups)
    found, found_again = (one.metrics()["rollout/reward/offered_mean"] for one in (order, again))
    assert found == found_again
    # Groups that never return are forgotten.
    for _ in range(40):
        plans = [next(order), next(order)]
        order.record([played(plans[0].task, 0.5, position=plans[0].position)])
    assert len(order.state()["offers"]) <= 4


def test_the_mean_of_offered_tasks_is_missing_where_nothing_is_chosen() -> None:
    order = curriculum(tasks_of(a=4))
    order.record([played(next(order).task, 0.5)])
    assert order.metrics() == {}
    order.record([played(next(order).task, 0.5)], [played(next(order).task, 1.0)])
    assert order.metrics() == {"rollout/reward/offered_mean": pytest.approx(0.75)}


def test_the_history_of_a_task_comes_before_that_of_its_kind() -> None:
    tasks = tasks_of(a=2, b=1)
    order = curriculum(tasks, select="mixed", max_epochs=200, kind_field="kind", history_groups=1)
    order.record([played(tasks[0], 0.5), played(tasks[2], 0.5)])
    order.record([played(tasks[1], 1.0)])  # now the kind succeeds always
    plays = Counter(plan.task.id for plan in order)
    assert plays["a0"] == 150  # of 600 offers, half are of this kind, and half of these are of this task
    assert plays["a1"] < 40


def test_the_history_of_kinds_is_missing_in_checkpoints_of_earlier_versions() -> None:
    order = curriculum(tasks_of(a=3, b=3), select="mixed", kind_field="kind")
    order.record([played(next(order).task, 0.0)])
    state = order.state()
    assert state.pop("kind_history") == {"a": [[0, 4, 0.0, 0.0]]}
    again = curriculum(tasks_of(a=3, b=3), select="mixed", kind_field="kind")
    again.restore(state)
    assert again.state() == {**state, "kind_history": {}}


def test_groups_that_were_lost_say_nothing_of_a_task() -> None:
    (task,) = tasks_of(a=1)
    order = curriculum([task], select="mixed")
    order.record([TrajectoryGroup(task=task, trajectories=(), num_lost=4)])
    assert order.metrics()["rollout/curriculum/seen_tasks"] == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5), st.sampled_from(["all", "mixed", "frontier"]), st.integers(0, 25), st.sampled_from([1, 2, 5]))
def test_after_a_resume_the_same_tasks_are_played(seed: int, select: str, cut: int, block_size: int) -> None:
    def new() -> Curriculum:
        return curriculum(
            tasks_of(a=5, b=9), seed=seed, select=select, max_epochs=9, kind_field="kind", kind_block_size=block_size
        )

    def play(order: Curriculum, count: int, rng: random.Random) -> list[str]:
        plans = []
        for plan in itertools.islice(order, count):
            plans.append(plan)
            order.record([played(plan.task, rng.choice([0.0, 0.5, 1.0]))])
        return ids(plans)

    whole, rng = new(), random.Random(1)
    first = play(whole, cut, rng)
    whole.record([])
    state = json.loads(json.dumps(whole.state()))
    rest = play(whole, 100, rng)
    again = new()
    again.restore(state)
    rng = random.Random(1)
    assert play(new(), cut, rng) == first
    assert play(again, 100, rng) == rest
    assert again.metrics() == whole.metrics()


def test_a_state_does_not_change_after_it_was_taken() -> None:
    order = curriculum(tasks_of(a=3), select="mixed")
    plan = next(order)
    order.record([played(plan.task, 0.5)])
    state = order.state()
    before = json.dumps(state)
    order.record([played(next(order).task, 1.0), played(plan.task, 1.0)])
    assert json.dumps(state) == before


def test_that_everything_rests_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    tasks = tasks_of(a=4)
    order = curriculum(tasks, select="mixed", max_epochs=50, success_threshold=2.0)
    for plan in order:
        order.record([played(plan.task, 0.5)])
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("4 of the 4 tasks that ran rest")
    assert "evaluation.success_threshold = 2" in message


def test_a_task_without_kind_and_a_weight_without_task_are_refused() -> None:
    tasks = tasks_of(a=2, b=2)
    with pytest.raises(DataError, match=r"task 'a0' has 'domain' = None.*The fields of the task are 'kind'\."):
        curriculum(tasks, kind_field="domain")
    for kind in ("", None, ["a"]):
        with pytest.raises(DataError, match="it to a word or a number"):
            curriculum([Task(id="t", messages=(), fields={"kind": kind})], kind_field="kind")
    with pytest.raises(DataError, match=r"kind_weights names 'c', but .* The values are 'a', 'b'\."):
        curriculum(tasks, kind_field="kind", kind_weights={"c": 2.0})
