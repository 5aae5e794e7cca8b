"""Replays of stored episodes without a model. A replay runs the same actions in the run's environment, up to the first
difference."""

from __future__ import annotations

import asyncio
import copy
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from sparring.agents.tool_loop import play
from sparring.assembly import load_environment, load_tasks
from sparring.config import Config
from sparring.environments import normalized, opened
from sparring.errors import (
    DataError,
    EpisodeError,
    InfrastructureError,
    PolicyTimeout,
    SparringError,
    TokenLimit,
    TurnLimit,
    UsageError,
)
from sparring.run_folders import RunFolder
from sparring.run_folders.encode import encode
from sparring.run_folders.stored import read_rows, read_trajectories
from sparring.runtime import interrupts
from sparring.tracking.local import task_json
from sparring.types import Json, Message, Outcome, Task, ToolSchema, Trajectory, Turn

MISSING = "(missing)"
SPLITS = ("train", "validation", "held_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A part of an observation that differs from the record. An absent value is MISSING."""

    path: str
    """The path of the part, such as `result.items[2].price`."""
    recorded: Json
    now: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first observation of an episode that differs from the record."""

    place: str
    """The position and the action, such as `turn 1, call 2: find({"title":"Emma"})`."""
    fields: tuple[Field, ...]
    is_noise: bool
    """Whether only ids, times, temporary paths, rounding or the order of keys differ (`environments.normalized`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of a replay. It matches the record if it has neither a difference nor a problem."""

    episode: str
    num_calls: int
    """The number of recorded tool calls."""
    difference: Difference | None = None
    problem: str | None = None
    """The reason why the environment could not run the episode to its end."""


@final
class Replays:
    """An iterator over replays of a run folder's episodes. Each iteration blocks until a replay has ended.

        for replay in Replays("runs/quickstart-001", "train/0/train-7/0.0"):
            print(replay.difference)

    `episode` is an episode id, or the name of a file of `trajectories/`, such as `validation-10`. By default, all
    episodes of the newest training step are replayed. If nothing was trained, the episodes of the newest validation or
    held-out evaluation are replayed.
    """

    def __init__(self, run: str | Path, episode: str | None = None) -> None:
        """Raise UsageError if the run has no environment or does not have this episode, and DataError if files are
        unreadable."""
        folder = _run_folder(Path(run))
        config = folder.config()
        if config.environment.target is None:
            raise UsageError(
                f"{folder.path} was run by an agent with its own environment ([agent]), so there is no environment to "
                "replay; specify a run whose recipe has environment.target."
            )
        self._make_environment, _ = load_environment(config, folder.code)
        self._seconds = config.rollout.rollout_timeout
        file, self._trajectories = _chosen(folder.path, episode)
        self._tasks = _tasks(config, folder.code)
        self.source = file.stem
        """The name of the episodes' file, such as `train-12`."""

    def __len__(self) -> int:
        return len(self._trajectories)

    def __iter__(self) -> Iterator[Replay]:
        for trajectory in self._trajectories:
            yield interrupts.run(self._replayed(trajectory))

    async def _replayed(self, recorded: Trajectory) -> Replay:
        task = copy.deepcopy(_original(recorded.task, self._tasks))
        session = _RecordedSession(recorded, None)
        num_turns = len(session.recorded)
        max_turns = num_turns if recorded.outcome is Outcome.MAX_TURNS else num_turns + 1
        difference, problem = None, None
        try:
            async with asyncio.timeout(self._seconds), opened(self._make_environment(), task) as environment:
                try:
                    played = await play(task, environment, session, max_turns=max_turns)
                    now = _observations(played.messages, played.transitions, len(session.turns), played.outcome)
                except _GoesOn as error:
                    now = _observations(session.messages, (), len(session.turns), str(error))
            before = _observations(recorded.messages, recorded.transitions, num_turns, recorded.outcome)
            difference = _first_difference(before, now)
        except TimeoutError:
            problem = f"the episode did not end within rollout_timeout = {self._seconds:g} s"
        except InfrastructureError as error:
            problem = str(error)
        return Replay(episode=recorded.id, num_calls=len(recorded.transitions), difference=difference, problem=problem)


def _run_folder(path: Path) -> RunFolder:
    manifest = path / "manifest.json"
    if not RunFolder.is_run(path) and manifest.is_file() and '"recording"' in manifest.read_text("utf-8"):
        raise UsageError(
            f"{path} is a recording of an endpoint: the environment of its clients is unknown, so there is nothing to "
            "replay. Specify a run that `sparring train` or `sparring eval` created."
        )
    folder = RunFolder(path)
    folder.require_manifest()
    return folder


def _chosen(run: Path, episode: str | None) -> tuple[Path, list[Trajectory]]:
    """Return the file that contains an episode, and the episode. If `episode` is a file, return all its episodes."""
    files = _files(run)
    named = files[-1] if episode is None else next((file for file in files if file.stem == episode), None)
    if named is not None:
        return named, read_trajectories(named)
    for file in reversed(files):
        # Files may be large, so only the file that contains the id is parsed.
        if encode(episode) in file.read_bytes():
            found = [trajectory for trajectory in read_trajectories(file) if trajectory.id == episode]
            if found:
                return file, found
    known = [row["id"] for file in files for _, row in read_rows(file)]
    near = difflib.get_close_matches(str(episode), known, n=3, cutoff=0.3) or known[-3:]
    raise UsageError(
        f"{run} has no episode {episode!r}; similar ids are {', '.join(near)}. Ids are in trajectories/*.jsonl, and "
        f"{', '.join(file.stem for file in files[-3:])} name whole files."
    )


def _files(run: Path) -> list[Path]:
    """Return the trajectory files by split, then by step. The files that are replayed by default come last."""
    placed = []
    for file in (run / "trajectories").glob("*.jsonl"):
        match = re.fullmatch(r"(\w+)-(\d+)", file.stem)
        if match is not None and match[1] in SPLITS:
            placed.append((-SPLITS.index(match[1]), int(match[2]), file))
    if not placed:
        raise DataError(
            f"{run} has no episodes in trajectories/ yet, so there is nothing to replay; train or evaluate it."
        )
    return [file for _, _, file in sorted(placed)]


def _tasks(config: Config, run: Path) -> dict[str, Task]:
    """Return the recipe's tasks keyed by id, if they can still be loaded."""
    try:
        tasks = load_tasks(config, run)
    except SparringError:
        return {}
    return {task.id: task for task in (*tasks.train, *tasks.validation, *tasks.held_out)}


def _original(stored: Task, tasks: Mapping[str, Task]) -> Task:
    """Return the recipe's task if it still equals the stored task. The tasks are compared as JSON, which turns tuples
    into lists and all keys into strings."""
    task = tasks.get(stored.id)
    return task if task is not None and encode(task_json(task)) == encode(task_json(stored)) else stored


_LIMITS: Mapping[Outcome, type[EpisodeError]] = {
    Outcome.MAX_TURNS: TurnLimit,
    Outcome.MAX_TOKENS: TokenLimit,
    Outcome.POLICY_TIMEOUT: PolicyTimeout,
}


class _GoesOn(SparringError):
    """The episode requested more turns of a policy than were recorded."""


@final
class _RecordedSession:
    """An implementation of `protocols.SessionLike` that returns the recorded turns of one policy, in order."""

    def __init__(self, trajectory: Trajectory, policy: str | None) -> None:
        self._trajectory = trajectory
        self._policy = policy
        turns = sorted((*trajectory.turns, *trajectory.other_turns), key=lambda turn: turn.id)
        self.recorded = [turn for turn in turns if turn.policy == policy]
        self.turns: tuple[Turn, ...] = ()
        self.messages: tuple[Message, ...] = ()
        """The conversation so far."""
        self._others: dict[str, _RecordedSession] = {}

    @property
    def id(self) -> str:
        return self._trajectory.id

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        played = (self.turns, *(other.turns for other in self._others.values()))
        return tuple(sorted((turn for turns in played for turn in turns), key=lambda turn: turn.id))

    @property
    def seconds_left(self) -> float | None:
        return None

    def of(self, name: str) -> _RecordedSession:
        return self._others.setdefault(name, _RecordedSession(self._trajectory, name))

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        self.messages = tuple(messages)
        if len(self.turns) == len(self.recorded):
            raise self._end()
        turn = self.recorded[len(self.turns)]
        self.turns += (turn,)
        self.messages += (turn.message,)
        return turn.message

    def _end(self) -> SparringError:
        """Return the error that ended the recorded episode when the agent requested one more turn."""
        error = self._trajectory.error or ""
        limit = _LIMITS.get(self._trajectory.outcome)
        if limit is not None:
            return limit(error)
        who = "the policy" if self._policy is None else f"the policy {self._policy!r}"
        return _GoesOn(f"the episode requests one more turn of {who} than the {len(self.recorded)} recorded turns")


@dataclass(frozen=True, slots=True)
class _Observation:
    """One output of the environment, with its position in the episode."""

    place: str
    value: Mapping[str, Json]


def _observations(
    messages: Sequence[Message], transitions: Sequence[Mapping[str, Json]], num_turns: int, end: str
) -> list[_Observation]:
    """Return all output of an environment in an episode: the opening, tool results, replies, and how the episode ended.

    Results are taken from the environment's own log, or from the conversation if there is no log.
    """
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    # Openings may also contain assistant messages, so the policy's messages are counted from the end.
    num_opening = answers[-num_turns] if 0 < num_turns <= len(answers) else len(messages)
    found = [_Observation("reset", {"messages": list(messages[:num_opening])})]
    logged = iter(transitions)
    turn, calls = -1, iter(())
    for message in messages[num_opening:]:
        if message["role"] == "assistant":
            turn += 1
            calls = enumerate(message.get("tool_calls") or (), start=1)
        elif message["role"] == "tool":
            number, call = next(calls)
            function = call["function"]
            entry = next(logged, {"result": message["content"]})
            place = f"turn {turn}, call {number}: {function['name']}({_compact(function['arguments'])})"
            # The action identifies the position; the rest is its result.
            found.append(
                _Observation(place, {key: entry[key] for key in entry if key not in ("turn", "tool", "arguments")})
            )
        else:
            found.append(_Observation(f"turn {turn}, reply", {"reply": message.get("content")}))
    return [*found, _Observation(f"end, after turn {turn}", {"outcome": str(end)})]


def _first_difference(recorded: Sequence[_Observation], now: Sequence[_Observation]) -> Difference | None:
    """Return the first difference. If one list is shorter, it differs at its last item at the latest, because that item
    states how the episode ended."""
    for before, after in zip(recorded, now, strict=False):
        if before.place != after.place:
            fields = (Field(path="next", recorded=before.place, now=after.place),)
            return Difference(place=before.place, fields=fields, is_noise=False)
        shared = [key for key in before.value if key in after.value]
        # Compare the values as JSON, the stored form, in which a tuple is a list.
        old, new = (json.loads(encode({key: one.value[key] for key in shared})) for one in (before, after))
        fields = tuple(_fields(old, new, ""))
        if fields:
            return Difference(place=before.place, fields=fields, is_noise=normalized(old) == normalized(new))
    return None


def _fields(recorded: Json, now: Json, path: str) -> Iterator[Field]:
    """Yield the innermost parts that differ. Texts that contain JSON are compared as JSON if that shows the
    difference."""
    if isinstance(recorded, Mapping) and isinstance(now, Mapping):
        for key in [*recorded, *(key for key in now if key not in recorded)]:
            yield from _fields(recorded.get(key, MISSING), now.get(key, MISSING), f"{path}.{key}" if path else str(key))
    elif isinstance(recorded, list) and isinstance(now, list):
        for index in range(max(len(recorded), len(now))):
            old, new = (value[index] if index < len(value) else MISSING for value in (recorded, now))
            yield from _fields(old, new, f"{path}[{index}]")
    elif recorded != now or type(recorded) is not type(now):
        old, new = _container(recorded), _container(now)
        inner = list(_fields(old, new, path)) if old is not None and new is not None else []
        yield from inner or [Field(path=path, recorded=recorded, now=now)]


def _container(value: Json) -> Json:
    """Return the object or array of a JSON text, or None for any other value."""
    try:
        parsed = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict | list) else None


def _compact(arguments: Json) -> str:
    """Return arguments in a canonical form, no matter whether they were stored as text or as an object. Other text is
    unchanged."""
    parsed = _container(arguments) if isinstance(arguments, str) else arguments
    return str(arguments) if parsed is None else json.dumps(parsed, ensure_ascii=False, separators=(",", ":"))
