"""What a run has done up to a step, small enough to keep: live while it trains, or read back from its folder.

A trajectory is kept as a Digest, without its tokens; of long runs only the first and the last steps keep theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, final

from sparring.errors import DataError
from sparring.findings import Finding
from sparring.tracking.stored import read_metrics, read_trajectories
from sparring.types import Json, Message, Outcome, StopReason, Trajectory

FIRST_STEPS, LAST_STEPS = 8, 24
"""Steps from the start and up to now whose digests are kept; in between only metrics are."""
MOST_DIGESTS = 512
"""Of a step; of more, every n-th task is kept."""
MOST_PLAYED = 64
"""Of a step, kept whole for trials; of more, every n-th task."""
MOST_CHARACTERS = 4000
"""Of one text."""
MOST_OF_RESULT = 400
"""Characters of what a tool answered."""
MOST_FACTS = 100
"""Of a final state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call as the policy wrote it."""

    name: str
    arguments: str
    """As JSON text, or what stood in its place."""
    result: str = field(default="", compare=False)
    """The beginning of what the tool answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What is kept of a trajectory."""

    id: str
    task_id: str
    prompt: str
    """What stood before the policy's first word."""
    said: tuple[str, ...]
    """The text of each of the policy's messages, calls apart."""
    answer: str
    """The text of the last message where the policy ended the episode with it, else empty."""
    calls: tuple[Call, ...]
    num_malformed: int
    """Calls that could not be read."""
    num_turns: int
    num_tokens: int
    """Sampled."""
    outcome: Outcome
    reward: float
    components: Mapping[str, float]
    score: float | None
    score_parts: Mapping[str, float]
    temperature: float | None
    """None of an episode without turns."""
    seconds: float = 0.0
    """From its begin to its end, the environment's and the policy's."""
    policy_seconds: float = 0.0
    """Of these, in which the policy was asked."""
    num_cut: int = 0
    """Turns that ended at the token limit."""
    state: Mapping[str, Json] = field(default_factory=dict)
    """Values of the final state by path; of lists and objects also their number of entries."""
    answered: bool = True
    """Whether the policy ended the episode with a message of its own. Where the environment or a limit ended it there is no
    answer, not an empty one."""
    has_judge: bool = False
    """Whether an LLM judge took part in its reward."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> Digest | None:
        """None for a trajectory without reward, from which nothing was learned."""
        if trajectory.reward is None:
            return None
        messages = [one for one in trajectory.messages if one.get("role") == "assistant"]
        results = {
            str(one.get("tool_call_id")): _text(one)[:MOST_OF_RESULT]
            for one in trajectory.messages
            if one.get("role") == "tool"
        }
        calls = [_call(call, results) for one in messages for call in one.get("tool_calls") or ()]
        last = trajectory.messages[-1] if trajectory.messages else {}
        is_answer = last.get("role") == "assistant" and not last.get("tool_calls")
        return cls(
            id=trajectory.id,
            task_id=trajectory.task.id,
            prompt=_prompt(trajectory),
            said=tuple(_text(one) for one in messages),
            answer=_text(last) if is_answer else "",
            calls=tuple(calls),
            num_malformed=sum(len(one.get("malformed_tool_calls") or ()) for one in messages),
            num_turns=len(trajectory.turns),
            num_tokens=trajectory.num_sampled_tokens,
            outcome=trajectory.outcome,
            reward=trajectory.reward.total,
            components=trajectory.reward.components,
            score=trajectory.score,
            score_parts=trajectory.score_parts,
            temperature=trajectory.turns[0].sampling.temperature if trajectory.turns else None,
            seconds=trajectory.seconds,
            policy_seconds=sum(turn.seconds for turn in trajectory.turns),
            num_cut=sum(turn.stop_reason is StopReason.LENGTH for turn in trajectory.turns),
            answered=is_answer,
            has_judge="judge" in trajectory.reward.record,
            state=dict(islice(_facts("", trajectory.final_state), MOST_FACTS)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step: its numbers, the episodes it was trained on, and those of the validation after it."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    train: tuple[Digest, ...] = ()
    """Empty for steps in the middle of a long run, and for step 0."""
    validation: tuple[Digest, ...] = ()


class Regrading(Protocol):
    """Plays and grades episodes again, with other messages of the policy."""

    @property
    def max_turns(self) -> int:
        """Of an episode."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether there is no time left for more."""
        ...

    def begin(self) -> None:
        """A look after a step, with new time."""
        ...

    def repeats(self, one: Trajectory) -> bool:
        """Whether the same messages come to the same end and the same reward."""
        ...

    def tried(self, one: Trajectory, script: Sequence[Message]) -> Trajectory | None:
        """The episode with these messages of the policy, graded. None where that cannot be, or there is no time left."""
        ...


@final
class History:
    """The steps of a run so far, in order. `success_threshold` is the score from which an episode counts as right."""

    def __init__(self, *, success_threshold: float = 1.0, trials: Regrading | None = None) -> None:
        """With `trials`, what the reward depends on can be found out."""
        self.success_threshold, self.trials = success_threshold, trials
        self.said: list[Finding] = []
        """What detectors have reported of it so far."""
        self._steps: list[StepRecord] = []
        self._played: dict[int, Mapping[str, Trajectory]] = {}

    @property
    def played(self) -> Mapping[str, Trajectory]:
        """Some training episodes of the first and the last steps by id, without their tokens; none without `trials`."""
        return {key: one for step in self._played.values() for key, one in step.items()}

    @property
    def steps(self) -> Sequence[StepRecord]:
        return self._steps

    @property
    def last_step(self) -> int:
        """Raises LookupError before the first."""
        return self._steps[-1].step

    def add(
        self,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        train: Iterable[Trajectory] = (),
        validation: Iterable[Trajectory] = (),
    ) -> None:
        """Take in what is new of a step. One that came before is played again, so that later ones are forgotten."""
        while self._steps and self._steps[-1].step > step:
            self._played.pop(self._steps.pop().step, None)
        train = list(train)
        if self.trials is not None and train:
            self._played[step] = {one.id: _light(one) for one in _some(train, MOST_PLAYED) if one.reward is not None}
        new = {"train": _digests(train), "validation": _digests(list(validation))}
        changed: dict[str, Any] = {name: digests for name, digests in new.items() if digests}
        if self._steps and self._steps[-1].step == step:
            before = self._steps.pop()
            self._steps.append(replace(before, metrics={**before.metrics, **(metrics or {})}, **changed))
            return
        self._steps.append(StepRecord(step=step, metrics=dict(metrics or {}), **changed))
        self._forget()

    def _forget(self) -> None:
        place = len(self._steps) - 1 - LAST_STEPS
        if place >= FIRST_STEPS:
            self._steps[place] = replace(self._steps[place], train=(), validation=())
        place = len(self._steps) - 1 - FIRST_STEPS
        if place >= FIRST_STEPS:
            self._played.pop(self._steps[place].step, None)


def read_steps(run: Path) -> Iterator[tuple[int, Mapping[str, float], list[Trajectory], list[Trajectory]]]:
    """Of each step of a stored run, in order, its metrics and the trajectories of training and validation.

    Raises DataError for a folder without metrics.jsonl, and for damaged files.
    """
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise DataError(f"{run} has no metrics.jsonl, so it is no run that trained; name one that did.")
    metrics, _ = read_metrics(path)
    for step in metrics:
        yield step, metrics[step], _played(run, "train", step), _played(run, "validation", step)


def read_history(run: Path, *, success_threshold: float = 1.0) -> History:
    """The history of a stored run, or of one under way, up to now; nothing of a run without metrics.jsonl. Episodes of steps
    that it keeps no digests of are not read. Raises DataError for damaged files."""
    history, path = History(success_threshold=success_threshold), run / "metrics.jsonl"
    metrics = read_metrics(path)[0] if path.is_file() else {}
    for place, step in enumerate(metrics):
        is_kept = place < FIRST_STEPS or place >= len(metrics) - LAST_STEPS
        train, validation = (_played(run, split, step) if is_kept else [] for split in ("train", "validation"))
        history.add(step, metrics=metrics[step], train=train, validation=validation)
    return history


def _played(run: Path, split: str, step: int) -> list[Trajectory]:
    path = run / "trajectories" / f"{split}-{step}.jsonl"
    return read_trajectories(path) if path.is_file() else []


def _digests(trajectories: Sequence[Trajectory]) -> tuple[Digest, ...]:
    digests = [digest for one in trajectories if (digest := Digest.of(one)) is not None]
    kept = {one.id for one in _some(trajectories, MOST_DIGESTS)}
    return tuple(one for one in digests if one.id in kept)


def _some(trajectories: Sequence[Trajectory], most: int) -> Sequence[Trajectory]:
    """Whole groups: what is compared within a task needs its siblings."""
    if len(trajectories) <= most:
        return trajectories
    places = {task_id: place for place, task_id in enumerate(dict.fromkeys(one.task.id for one in trajectories))}
    every = -(-len(trajectories) // most)
    return [one for one in trajectories if places[one.task.id] % every == 0]


def _light(one: Trajectory) -> Trajectory:
    """Without its tokens, of which only the number is kept."""
    turns = tuple(
        replace(turn, prompt_ids=(), token_ids=(0,) * turn.num_sampled_tokens, sampled_logprobs=())
        for turn in one.turns
    )
    return replace(one, turns=turns, other_turns=())


def _prompt(trajectory: Trajectory) -> str:
    opening = []
    for message in trajectory.messages or trajectory.task.messages:
        if message.get("role") == "assistant":
            break
        opening.append(_text(message))
    return "\n".join(opening)[:MOST_CHARACTERS]


def _call(call: Mapping[str, Any], results: Mapping[str, str]) -> Call:
    function = call["function"]
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, sort_keys=True)
    return Call(
        name=str(function.get("name")), arguments=text[:MOST_CHARACTERS], result=results.get(str(call.get("id")), "")
    )


def _facts(path: str, state: Json) -> Iterator[tuple[str, Json]]:
    """The values in a state by path, those near its root first within each branch."""
    if isinstance(state, dict | list):
        if path:
            yield f"number of entries of {path}", len(state)
        entries = state.items() if isinstance(state, dict) else enumerate(state)
        for key, value in entries:
            yield from _facts(f"{path}.{key}" if path else str(key), value)
    elif path:
        yield path, state[:MOST_OF_RESULT] if isinstance(state, str) else state


def _text(message: Mapping[str, Json]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")[:MOST_CHARACTERS]
