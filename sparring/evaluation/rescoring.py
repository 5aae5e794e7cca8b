"""Grading stored episodes with a different scorer, without a model and without new episodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sparring.config import Config
from sparring.errors import DataError, InfrastructureError, ServiceError
from sparring.evaluation.evaluation import Evaluation, Row, SuccessCriterion, summarize
from sparring.evaluation.independence import independence
from sparring.evaluation.report import EvaluationReport, comparisons, read_report
from sparring.metering.usage import meter_usage, read_usage
from sparring.protocols import Scorer
from sparring.run_folders import RunFolder
from sparring.run_folders.stored import read_trajectories
from sparring.runtime import interrupts
from sparring.runtime.plugins import load_object
from sparring.scorers import evaluate_score
from sparring.types import Trajectory, TrajectoryGroup

AT_ONCE = 8
"""The number of episodes that are scored concurrently, for scorers that wait for something."""


def rescore(
    run: RunFolder,
    config: Config,
    scorer: str,
    *,
    episodes: str | None = None,
    on_episode: Callable[[int, int], object] = lambda _done, _total: None,
) -> EvaluationReport:
    """Grade the newest held-out evaluation, or the stored `episodes` (`held_out-2`, `validation-10`, `train-3`), with a
    different scorer.

    Writes evaluations/rescored-001.json and trajectories/rescored-1.jsonl. Raises DataError if there are no episodes,
    UsageError if the scorer cannot be loaded, ServiceError if its infrastructure fails, and RewardError if it does not
    return a number.
    """
    file = f"{scorer.partition(':')[0].replace('.', '/')}.py"
    # A scorer in development is in the current folder; the run's own scorer is in the run's folder.
    function: Scorer = load_object(scorer, folder=Path.cwd() if Path(file).is_file() else run.code)
    named = config.reward.reward
    reward = None if named is None else load_object(named, folder=run.code)
    criterion = SuccessCriterion(
        scorer=scorer,
        independence=independence(reward, function),
        success_threshold=config.evaluation.success_threshold,
    )
    name = episodes or newest(run)
    path = run.path / "trajectories" / f"{name}.jsonl"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in path.parent.glob("*.jsonl"))) or "none"
        raise DataError(f"{run.path} has no episodes {name!r}; it has {there}.")
    began = time.monotonic()
    rescored = run.next_evaluation_path("rescored")
    with meter_usage(run.path, during=rescored.stem):
        graded = interrupts.run(_score(function, read_trajectories(path), on_episode))
    seconds, played, evaluations = time.monotonic() - began, [], []
    for row in _rows(run, name, graded):
        groups = _groups(row, graded)
        played += groups
        prefix = "val" if row.split == "validation" else "eval"
        scored = summarize(groups, row, criterion=criterion, seconds=seconds, prefix=prefix)
        # If every episode of a task was lost, no stored trajectory contains the task.
        evaluations.append(replace(scored, lost={**row.lost, **scored.lost}))
    original = _report(run, name)
    report = EvaluationReport(
        evaluations=tuple(evaluations),
        comparisons=comparisons(evaluations),
        path=rescored,
        rescored={"episodes": name, "scorer": scorer},
        endpoints=tuple(read_usage(run.path, during=rescored.stem)),
        seen_in_training=0 if original is None else original.seen_in_training,
    )
    report.write(played)
    return report


def newest(run: RunFolder) -> str:
    """Return the name of the newest held-out evaluation, such as `held_out-3`. Raises DataError if there is none."""
    numbers = [int(path.stem.rpartition("-")[2]) for path in run.evaluations.glob("held_out-*.json")]
    if not numbers:
        raise DataError(f"{run.path} has no held-out evaluation yet; evaluate it with `sparring eval {run.path}`.")
    return f"held_out-{max(numbers)}"


async def _score(
    scorer: Scorer, trajectories: Sequence[Trajectory], on_episode: Callable[[int, int], object]
) -> list[Trajectory]:
    slots, num_done = asyncio.Semaphore(AT_ONCE), 0

    async def judge(trajectory: Trajectory) -> Trajectory:
        nonlocal num_done
        async with slots:
            try:
                score = await evaluate_score(scorer, trajectory)
            except InfrastructureError as error:
                raise ServiceError(f"the scorer could not grade {trajectory.id}: {error}") from error
        num_done += 1
        on_episode(num_done, len(trajectories))
        return replace(trajectory, score=score.value, score_parts=score.parts)

    return list(await asyncio.gather(*map(judge, trajectories)))


def _rows(run: RunFolder, name: str, trajectories: Sequence[Trajectory]) -> list[Row]:
    """Return the rows of a held-out evaluation or, for any other file, a single row with all its episodes."""
    split, _, number = name.rpartition("-")
    report = _report(run, name)
    if report is not None:
        return [_row(one) for one in report.evaluations]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    if not turns:
        raise DataError(f"{run.path}/trajectories/{name}.jsonl contains no turn, so there is nothing to score.")
    row = Row(
        name=name,
        label="",
        split=split,
        policy_version=int(number),
        fingerprint=turns[0].fingerprint,
        temperature=turns[0].sampling.temperature,
        group_size=1 + max(one.attempt for one in trajectories),
    )
    return [row]


def _report(run: RunFolder, name: str) -> EvaluationReport | None:
    """Return the report of a held-out evaluation, or None for episodes of training or validation."""
    split, _, number = name.rpartition("-")
    if split not in ("held_out", "rescored"):
        return None
    return read_report(run.evaluations / f"{split}-{int(number):03}.json")


def _row(evaluation: Evaluation) -> Row:
    return Row(
        name=evaluation.name,
        label=evaluation.label,
        split=evaluation.split,
        policy_version=evaluation.policy_version,
        fingerprint=evaluation.fingerprint,
        temperature=evaluation.temperature,
        group_size=evaluation.group_size,
        lost=evaluation.lost,
        overrides=evaluation.overrides,
        is_random_control=evaluation.is_random_control,
    )


def _groups(row: Row, trajectories: Sequence[Trajectory]) -> list[TrajectoryGroup]:
    """Return the row's episodes, grouped by task, in file order. An empty label selects all episodes."""
    by_task: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if not row.label or trajectory.id.split("/")[1].rpartition("@")[0] == row.label:
            by_task.setdefault(trajectory.task.id, []).append(trajectory)
    return [
        TrajectoryGroup(task=one[0].task, trajectories=tuple(one), num_lost=max(0, row.group_size - len(one)))
        for one in by_task.values()
    ]
