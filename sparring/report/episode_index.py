"""The index of a run's stored episodes: what determines whether a page shows an episode, and where to read it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias, final

from sparring.algorithms import choice
from sparring.algorithms.advantages import ADVANTAGES
from sparring.algorithms.credit import RewardedGroup, TurnAdvantages, credit_rewarded
from sparring.config import Config
from sparring.errors import DataError
from sparring.evaluation.agreement import Disagreement, agreement
from sparring.report.reading import Record
from sparring.run_folders.digests import FileState, Outlined, read_outline, state_of
from sparring.types import Json, Outcome, Trajectory

SPLITS = ("held_out", "validation", "train")
"""The splits whose episodes are shown. The verdict is about the first split that exists."""

_FILE = re.compile(rf"({'|'.join(SPLITS)})-(\d+)\.jsonl")
Estimate: TypeAlias = Callable[[Sequence[RewardedGroup]], TurnAdvantages]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFile:
    """A file of episodes."""

    path: Path
    split: str
    number: int
    """The step, or the number of the evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The properties of an episode that determine whether the page shows it, and those that depend on the other
    episodes of its file."""

    file: EpisodeFile
    offset: int
    """The place of its line in the file, in bytes."""
    num_bytes: int
    """The length of its line. The page shows less."""
    id: str
    task_id: str
    kind: int
    """The kind of the episode: 0 for a disagreement, 1 for a failure, 2 for neither."""
    policy: int
    """The policy's index in an evaluation's file, in which the most important policy is the last."""
    disagreement: Disagreement | None
    advantages: tuple[float, ...] | None
    """The advantages of its turns, if they can be computed from rewards alone."""

    @property
    def place(self) -> tuple[Path, int]:
        """The place of the episode, which identifies it."""
        return self.file.path, self.offset

    @property
    def split(self) -> str:
        return self.file.split

    @property
    def group(self) -> tuple[Path, str]:
        """The key of the episode's group."""
        return self.file.path, self.task_id


class Prepared(NamedTuple):
    """An episode with its content in the page."""

    trajectory: Trajectory
    content: dict[str, Json]
    num_bytes: int
    """The size of the content in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The content of one file, and the file's state when it was read."""

    state: FileState
    known: tuple[Known, ...]
    tasks: Mapping[str, str]
    """The hash of the content of each task, by id."""


@final
class EpisodeIndex:
    """The known episodes of a run. A file is read again only after it has changed, so that the page of a long run in
    progress can be renewed often."""

    def __init__(self) -> None:
        self.prepared: dict[tuple[Path, int], Prepared] = {}
        """The episodes of the last page, by place."""
        self._read: dict[Path, _Read] = {}
        self._files: Sequence[EpisodeFile] = ()

    def read(self, record: Record) -> list[Known]:
        """Return all episodes. Files that the verdict is based on come first, newest first. Raises DataError if a file
        is damaged."""
        self._files = _files(record.path / "trajectories")
        estimate = _estimator(record.config)[0]
        for file in self._files:
            state = state_of(file.path)
            if file.path not in self._read or self._read[file.path].state != state:
                self.prepared = {place: one for place, one in self.prepared.items() if place[0] != file.path}
                self._read[file.path] = _index(file, state, record, estimate)
        return [one for file in self._files for one in self._read[file.path].known]

    @property
    def num_seen_in_training(self) -> int:
        """The number of held-out tasks whose exact content was trained on. Without held-out tasks, validation tasks are
        counted."""
        tasks: dict[str, dict[str, str]] = {split: {} for split in SPLITS}
        for file in self._files:
            tasks[file.split] = {**self._read[file.path].tasks, **tasks[file.split]}
        trained = set(tasks["train"].values())
        evaluated = tasks["held_out"] or tasks["validation"]
        return sum(content in trained for content in evaluated.values())


def why_no_advantages(config: Config) -> str | None:
    """Return the reason why the episodes of training have no advantages, or None if they have them."""
    return _estimator(config)[1]


def is_right(one: Trajectory, record: Record) -> bool | None:
    """Return whether the scorer counts an episode as correct. Without a scorer, the reward is used instead. Return None
    if the episode has neither a score nor a reward."""
    grade = one.score if one.score is not None else None if one.reward is None else one.reward.total
    return None if grade is None else grade >= record.config.evaluation.success_threshold


def policy_of(episode_id: str, version: int | None, split: str) -> str:
    """Return the policy's label from the episode id (`held_out/<label>@<start>/<task>/<member>`), or the last version
    of its weights."""
    label = episode_id.split("/")[1].partition("@")[0] if split == "held_out" and episode_id.count("/") >= 2 else ""
    return label if label or version is None else f"version {version}"


def _files(folder: Path) -> list[EpisodeFile]:
    found = [(_FILE.fullmatch(path.name), path) for path in (folder.iterdir() if folder.is_dir() else ())]
    named = [EpisodeFile(path=path, split=match[1], number=int(match[2])) for match, path in found if match]
    return sorted(named, key=lambda one: (SPLITS.index(one.split), -one.number))


def _index(file: EpisodeFile, state: FileState, record: Record, estimate: Estimate | None) -> _Read:
    """Read what the page needs of all episodes of a file."""
    outline = read_outline(file.path)
    played = [one.trajectory for one in outline.episodes]
    found = agreement(played, success_threshold=record.config.evaluation.success_threshold)
    disagreements = {one.trajectory_id: one for one in found.disagreements}
    labels = [policy_of(one.trajectory.id, one.version, file.split) for one in outline.episodes]
    policies = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    advantages = _advantages(outline.episodes, estimate) if file.split == "train" and estimate is not None else {}
    known = [
        Known(
            file=file,
            offset=place.offset,
            num_bytes=place.num_bytes,
            id=one.id,
            task_id=one.task.id,
            kind=0 if one.id in disagreements else 1 if _failed(one, record) else 2,
            policy=policies[label],
            disagreement=disagreements.get(one.id),
            advantages=advantages.get(one.id),
        )
        for place, one, label in zip(outline.episodes, played, labels, strict=True)
    ]
    return _Read(state=state, known=tuple(known), tasks=outline.tasks)


def _failed(one: Trajectory, record: Record) -> bool:
    return one.outcome is not Outcome.FINISHED or not is_right(one, record)


def _estimator(config: Config) -> tuple[Estimate | None, str | None]:
    """Return the function that recomputes the training advantages from rewards alone, or the reason why this is
    impossible."""
    section = config.algorithm
    if not config.is_trainable:
        return None, "no policy was trained"
    if section.advantage_method not in ADVANTAGES:
        return None, f"{section.advantage_method} is the recipe's own code, which a report does not run"
    if section.takes_reward_off:
        return (
            None,
            "the divergence from the base model was subtracted from the reward, and computing it needs the model",
        )
    if section.teachers:
        return None, "a part of each token's advantage comes from a teacher, and computing it needs the model"
    estimator = choice.bind(ADVANTAGES[section.advantage_method], section.hyperparameters())
    return partial(credit_rewarded, estimator=estimator), None


def _advantages(outlined: Sequence[Outlined], estimate: Estimate) -> TurnAdvantages:
    groups: dict[str, RewardedGroup] = {}
    for one in outlined:
        if one.rewarded is not None:
            key = one.trajectory.id.rpartition("/")[0]
            group = groups.setdefault(key, RewardedGroup(one.trajectory.task.id, []))
            group.members.append((one.trajectory.id, one.rewarded))
    try:
        return estimate(list(groups.values()))
    except DataError:  # raised for a file that contains only part of its step
        return {}
