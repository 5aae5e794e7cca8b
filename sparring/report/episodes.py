"""The episodes of a run for the page's episode viewer: which episodes fit into the page, and the content of each.

Episodes on which reward and scorer disagree come first, then failures, then correct episodes. Within each kind,
episodes with a failed sibling come first. A page contains as many episodes as fit into its size limit, and counts the
others.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from sparring.algorithms import choice
from sparring.algorithms.advantages import ADVANTAGES
from sparring.algorithms.credit import TurnAdvantages, credit
from sparring.config import Config
from sparring.errors import DataError
from sparring.evaluation.agreement import Disagreement, agreement
from sparring.evaluation.of_run import content_of
from sparring.pages.html import data_text
from sparring.report.reading import Record
from sparring.run_folders.stored import read_trajectories
from sparring.tracking.spans import match_turns
from sparring.types import Json, Message, Outcome, StopReason, Trajectory, TrajectoryGroup, Turn

MAX_BYTES = 9 * 2**20
"""The size limit of the conversations in a page, in bytes."""
MAX_TOKEN_BYTES = 4 * 2**20
"""The size limit of the tokens of these conversations, which keeps the page below 15 MiB."""
MAX_CHARACTERS = 20_000
"""The length limit of one string."""
MAX_FIELD_CHARACTERS = 4_000
"""The length limit of a task's fields."""
LOGPROB_UNITS = 100
"""The factor by which log-probabilities are multiplied to store them as integers."""

SPLITS = ("held_out", "validation", "train")
"""The splits whose episodes are shown. The verdict is about the first split that exists."""

_FILE = re.compile(rf"({'|'.join(SPLITS)})-(\d+)\.jsonl")
Estimate: TypeAlias = Callable[[Sequence[TrajectoryGroup]], TurnAdvantages]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The properties of an episode that determine whether the page shows it."""

    place: int
    """The index of the file that contains the episode."""
    id: str
    task_id: str
    split: str
    kind: int
    """The kind of the episode: 0 for a disagreement, 1 for a failure, 2 for neither."""
    policy: int
    """The policy's index in an evaluation's file, in which the most important policy is the last."""
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """The episodes of a run that the page shows."""

    shown: Sequence[Json]
    """The episodes, in the format and order that the reader script expects."""
    vocabulary: Sequence[str]
    """The tokens that occur in the shown episodes."""
    num_played: int
    left_out: Mapping[str, int]
    """The numbers of omitted episodes, by description. Empty if all episodes are shown."""
    without_tokens: int
    """The number of shown episodes whose tokens did not fit or are not known."""
    why_no_advantages: str | None
    """The reason why training episodes have no advantages, or None if they have advantages."""
    seen_in_training: int
    """The number of held-out tasks whose exact content was trained on. Without held-out tasks, validation tasks are
    counted."""


def episodes(record: Record, *, max_bytes: int = MAX_BYTES, max_token_bytes: int = MAX_TOKEN_BYTES) -> Episodes:
    """Select and prepare the episodes for the page. Raises DataError if a file is damaged.

    The files are read twice: once to classify all episodes, and once to load the episodes that fit.
    """
    files = _files(record.path / "trajectories")
    estimate, why_no_advantages = _estimator(record.config)
    known: list[Known] = []
    digests: dict[str, dict[str, str]] = {split: {} for split in SPLITS}
    for place, (split, _, path) in enumerate(files):
        played = read_trajectories(path)
        disagreements = _disagreements(record, played)
        policies = list(dict.fromkeys(_policy(one, split) for one in played))
        for one in played:
            content = data_text(_episode(one, record, disagreements.get(one.id), split, 0))
            kind = 0 if one.id in disagreements else 1 if _failed(one, record) else 2
            known.append(
                Known(
                    place=place,
                    id=one.id,
                    task_id=one.task.id,
                    split=split,
                    kind=kind,
                    policy=policies.index(_policy(one, split)),
                    num_bytes=len(content.encode()),
                )
            )
            digests[split].setdefault(one.task.id, content_of(one.task))
    chosen = _chosen(known, max_bytes)
    tokens = _Tokens(record.vocabulary, max_token_bytes)
    shown: dict[str, Json] = {}
    for place in sorted({one.place for one in chosen}):
        split, number, path = files[place]
        played = read_trajectories(path)
        disagreements = _disagreements(record, played)
        advantages = _advantages(played, estimate) if split == "train" and estimate is not None else {}
        wanted = {one.id for one in chosen if one.place == place}
        for one in played:
            if one.id in wanted:
                shown[one.id] = _episode(one, record, disagreements.get(one.id), split, number, advantages.get(one.id))
                tokens.offer(one, shown[one.id])
    tokens.add(shown[one.id] for one in chosen)
    kept = {one.id for one in chosen}
    return Episodes(
        shown=[shown[one.id] for one in chosen],
        vocabulary=tokens.texts,
        num_played=len(known),
        left_out=_left_out(one for one in known if one.id not in kept),
        without_tokens=tokens.num_without,
        why_no_advantages=why_no_advantages,
        seen_in_training=_seen_in_training(digests),
    )


def _files(folder: Path) -> list[tuple[str, int, Path]]:
    """Return (split, step or number, path) of the episode files. Files that the verdict is based on come first, newest
    first."""
    found = [(_FILE.fullmatch(path.name), path) for path in (folder.iterdir() if folder.is_dir() else ())]
    named = [(match[1], int(match[2]), path) for match, path in found if match]
    return sorted(named, key=lambda one: (SPLITS.index(one[0]), -one[1]))


def _disagreements(record: Record, played: Sequence[Trajectory]) -> Mapping[str, Disagreement]:
    found = agreement(played, success_threshold=record.config.evaluation.success_threshold)
    return {one.trajectory_id: one for one in found.disagreements}


def _is_right(one: Trajectory, record: Record) -> bool | None:
    """Return whether the scorer counts an episode as correct. Without a scorer, the reward is used instead. Return None
    if the episode has neither a score nor a reward."""
    grade = one.score if one.score is not None else None if one.reward is None else one.reward.total
    return None if grade is None else grade >= record.config.evaluation.success_threshold


def _failed(one: Trajectory, record: Record) -> bool:
    return one.outcome is not Outcome.FINISHED or not _is_right(one, record)


def _seen_in_training(digests: Mapping[str, Mapping[str, str]]) -> int:
    trained = set(digests["train"].values())
    evaluated = digests["held_out"] or digests["validation"]
    return sum(digest in trained for digest in evaluated.values())


def _chosen(known: Sequence[Known], max_bytes: int) -> list[Known]:
    """Return the episodes that fit, in the order in which the page shows them. Within a kind, the choice is random with
    a fixed seed, so that no step is preferred."""
    rng = random.Random(0)
    failed = {_group(one) for one in known if one.kind < 2}
    order = {one.id: rng.random() for one in known}
    ranked = sorted(
        known, key=lambda one: (one.kind, _group(one) not in failed, SPLITS.index(one.split), order[one.id])
    )
    chosen, used = [], 0
    for one in ranked:
        if used + one.num_bytes <= max_bytes:
            used += one.num_bytes
            chosen.append(one)
    played = {one.id: place for place, one in enumerate(known)}
    return sorted(chosen, key=lambda one: (one.kind, one.place, -one.policy, played[one.id]))


def _group(one: Known) -> tuple[int, str]:
    return one.place, one.task_id


def _left_out(left: Iterable[Known]) -> dict[str, int]:
    names = ("disagreements of reward and scorer", "failures", "correct episodes")
    counts = Counter(one.kind for one in left)
    return {names[kind]: counts[kind] for kind in sorted(counts)}


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
    reads_turns = section.advantage_method in choice.PER_TURN
    estimator = choice.bind(ADVANTAGES[section.advantage_method], section.hyperparameters())
    return partial(credit, estimator=estimator, sums_turn_rewards=None if reads_turns else True), None


def _advantages(played: Sequence[Trajectory], estimate: Estimate) -> TurnAdvantages:
    members: dict[str, list[Trajectory]] = {}
    for one in played:
        if one.reward is not None:
            members.setdefault(one.id.rpartition("/")[0], []).append(one)
    groups = [TrajectoryGroup(task=group[0].task, trajectories=tuple(group)) for group in members.values()]
    try:
        return estimate(groups)
    except DataError:  # raised for a file that contains only part of its step
        return {}


def _episode(
    one: Trajectory,
    record: Record,
    disagreement: Disagreement | None,
    split: str,
    number: int,
    advantages: Sequence[float] | None = None,
) -> dict[str, Json]:
    messages, aside = _messages(one)
    shown: dict[str, Json] = {
        "id": one.id,
        "task": one.task.id,
        "split": split,
        "number": number,
        "policy": _policy(one, split),
        "attempt": one.attempt,
        "outcome": one.outcome.value,
        "right": _is_right(one, record),
        "reward": None if one.reward is None else _finite(one.reward.total),
        "score": _finite(one.score),
        "components": {} if one.reward is None else _numbers(one.reward.components),
        "parts": _numbers(one.score_parts),
        "seconds": round(one.seconds, 2),
        "messages": messages,
        "turns": [_turn(one, place, advantages) for place in range(len(one.turns))],
        "fields": _cut(json.dumps(one.task.fields, ensure_ascii=False, default=str), MAX_FIELD_CHARACTERS),
    }
    if disagreement is not None:
        shown["disagreement"] = {"kind": disagreement.kind, "fault": _cut(disagreement.fault, MAX_FIELD_CHARACTERS)}
    if one.error:
        shown["error"] = _cut(one.error, MAX_FIELD_CHARACTERS)
    if aside:
        shown["aside"] = aside
    return shown


def _policy(one: Trajectory, split: str) -> str:
    """Return the policy's label from the episode id (`held_out/<label>@<start>/<task>/<member>`), or the version of the
    last turn's weights."""
    label = one.id.split("/")[1].partition("@")[0] if split == "held_out" and one.id.count("/") >= 2 else ""
    if label or not one.turns or not one.turns[-1].versions:
        return label
    return f"version {one.turns[-1].versions[-1][0]}"


def _turn(one: Trajectory, place: int, advantages: Sequence[float] | None) -> dict[str, Json]:
    turn = one.turns[place]
    shown: dict[str, Json] = {"num": turn.num_sampled_tokens}
    if one.reward is not None and one.reward.per_turn is not None:
        shown["reward"] = _finite(one.reward.per_turn.get(turn.id, 0.0))
    if advantages is not None:
        shown["advantage"] = _finite(advantages[place])
    if turn.sampled_logprobs:
        shown["logprob"] = _finite(fmean(turn.sampled_logprobs))
    if turn.stop_reason is StopReason.LENGTH:
        shown["cut"] = True
    if turn.untrained_reason is not None and one.id.startswith("train/"):
        shown["untrained"] = turn.untrained_reason.value
    return shown


def _messages(one: Trajectory) -> tuple[list[Json], list[Json]]:
    """Return the conversation, and the turns that are not in it (branches and side requests). Each entry contains the
    index of its turn."""
    places = match_turns(one.messages, one.turns)
    num_tools = sum(message.get("role") == "tool" for message in one.messages)
    errors = iter(
        [transition.get("error") for transition in one.transitions] if len(one.transitions) == num_tools else ()
    )
    shown = []
    for message, place in zip(one.messages, places, strict=True):
        error = next(errors, None) if message.get("role") == "tool" else None
        shown.append(_message(message, place, error))
    inside = set(places)
    aside = [_message(turn.message, place, None) for place, turn in enumerate(one.turns) if place not in inside]
    return shown, aside


def _message(message: Message, place: int | None, error: Json) -> dict[str, Json]:
    content = message.get("content")
    shown: dict[str, Json] = {"role": str(message.get("role"))}
    if text := _cut(content if isinstance(content, str) else _parts(content)):
        shown["text"] = text
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        shown["reasoning"] = _cut(str(reasoning))
    if calls := message.get("tool_calls"):
        shown["calls"] = [_call(call) for call in calls]
    if malformed := message.get("malformed_tool_calls"):
        shown["malformed"] = [_cut(_parts(call)) for call in malformed]
    if place is not None:
        shown["turn"] = place
    if error:
        shown["error"] = str(error)
    return shown


def _call(call: Json) -> list[str]:
    """Return the name and the arguments of a tool call as text."""
    function = call.get("function", {}) if isinstance(call, Mapping) else {}
    arguments = function.get("arguments")
    return [_cut(str(function.get("name"))), _cut(arguments if isinstance(arguments, str) else _parts(arguments))]


def _parts(content: Json) -> str:
    """Return content that is not a string as text. The parts of a message are joined; anything else is written as
    JSON."""
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "\n".join(str(part["text"]) for part in content)
    return json.dumps(content, ensure_ascii=False, default=str)


def _cut(text: str, most: int = MAX_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[:most]} [... {len(text) - most} more characters in the run's folder]"


def _numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    return {str(name): _finite(value) for name, value in values.items()}


def _finite(value: float | None) -> float | None:
    """Return the value rounded to four digits, or None if it is not finite, because JSON cannot represent such numbers."""
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None


class _Tokens:
    """The tokens of episodes, as indexes into a table of all tokens in these episodes, up to a size limit."""

    def __init__(self, vocabulary: Sequence[str] | None, max_bytes: int) -> None:
        self._vocabulary = vocabulary
        self._left = max_bytes
        self._offered: dict[str, list[Turn]] = {}
        self._places: dict[int, int] = {}
        self.texts: list[str] = []
        self.num_without = 0

    def offer(self, one: Trajectory, shown: Json) -> None:
        """Store the turns of an episode. `add` may add their tokens later."""
        self._offered[shown["id"]] = list(one.turns)

    def add(self, shown: Iterable[Json]) -> None:
        """Add the tokens to each episode in order, as long as they fit."""
        for one in shown:
            turns = self._offered.pop(one["id"])
            size = 8 * sum(len(turn.token_ids) for turn in turns)
            if self._vocabulary is None or not size or size > self._left:
                self.num_without += 1
                continue
            self._left -= size
            for turn, place in zip(turns, one["turns"], strict=True):
                place["tokens"] = [self._place(token_id) for token_id in turn.token_ids]
                place["logprobs"] = [
                    round(LOGPROB_UNITS * value) if math.isfinite(value) else None for value in turn.sampled_logprobs
                ]

    def _place(self, token_id: int) -> int:
        if token_id not in self._places:
            self._places[token_id] = len(self.texts)
            known = self._vocabulary or ()
            self.texts.append(str(known[token_id]) if 0 <= token_id < len(known) else f"[{token_id}]")
        return self._places[token_id]
