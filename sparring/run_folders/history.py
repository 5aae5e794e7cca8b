"""The steps of a run so far, in a form that is small enough to keep in memory. They are recorded during training, or
read from the run's folder.

Each trajectory is stored as a Digest without tokens. For a long run, only the first and the last steps have digests.
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
from sparring.run_folders.stored import read_metrics, read_trajectories
from sparring.types import Json, Message, Outcome, StopReason, Trajectory

FIRST_STEPS, LAST_STEPS = 8, 24
"""The number of steps at the start and at the end whose digests are kept. For the steps in between, only metrics are
kept."""
MOST_DIGESTS = 512
"""The largest number of digests of one step. For a larger step, only every n-th task is kept."""
MOST_PLAYED = 64
"""The largest number of whole episodes of one step that are kept for trials. For a larger step, only every n-th task is
kept."""
MOST_CHARACTERS = 4000
"""The maximum length of one string."""
MOST_OF_RESULT = 400
"""The maximum length of a tool result."""
MOST_FACTS = 100
"""The largest number of values of a final state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A tool call as the policy wrote it."""

    name: str
    arguments: str
    """The arguments as JSON text, or the invalid text that the policy wrote."""
    result: str = field(default="", compare=False)
    """The beginning of the tool's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """A summary of one trajectory, without tokens."""

    id: str
    task_id: str
    prompt: str
    """All messages before the policy's first message."""
    texts: tuple[str, ...]
    """The text of each of the policy's messages, without tool calls."""
    answer: str
    """The text of the last message if the policy ended the episode with it, otherwise empty."""
    calls: tuple[RecordedCall, ...]
    num_malformed: int
    """The number of calls that could not be parsed."""
    num_turns: int
    num_tokens: int
    """The number of sampled tokens."""
    outcome: Outcome
    reward: float
    components: Mapping[str, float]
    score: float | None
    score_parts: Mapping[str, float]
    temperature: float | None
    """The sampling temperature. None for an episode without turns."""
    seconds: float = 0.0
    """The duration of the episode, for the environment and the policy together."""
    policy_seconds: float = 0.0
    """The part of `seconds` that was spent on sampling."""
    num_cut: int = 0
    """The number of turns that ended at the token limit."""
    state: Mapping[str, Json] = field(default_factory=dict)
    """The values of the final state by path. Lists and objects also have their number of entries."""
    answered: bool = True
    """Whether the policy ended the episode with a message. If the environment or a limit ended the episode, there is no
    answer (not an empty one)."""
    has_judge: bool = False
    """Whether an LLM judge contributed to the reward."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> Digest | None:
        """Summarize a trajectory. Returns None if the trajectory has no reward, because such a trajectory was not
        trained on."""
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
            texts=tuple(_text(one) for one in messages),
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
    """One optimizer step: its metrics, its training episodes, and the episodes of the validation that followed."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    train: tuple[Digest, ...] = ()
    """The training episodes. Empty for step 0, and for steps in the middle of a long run."""
    validation: tuple[Digest, ...] = ()


class Regrader(Protocol):
    """Runs and grades episodes again with different messages of the policy.

    Detectors use it to find out which messages a reward depends on:

        if regrader.is_repeatable(one):
            changed = regrader.regrade(one, other_messages)
    """

    @property
    def max_turns(self) -> int:
        """The turn limit of an episode."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the time limit for trials has been reached."""
        ...

    def begin(self) -> None:
        """Start the trials of a step with a new time limit."""
        ...

    def is_repeatable(self, one: Trajectory) -> bool:
        """Return whether repeating the messages of an episode gives the same outcome and the same reward."""
        ...

    def regrade(self, one: Trajectory, script: Sequence[Message]) -> Trajectory | None:
        """Return the graded episode with these messages, or None if this is impossible or no time is left."""
        ...


@final
class History:
    """The steps of a run so far, in order. Episodes with a score of at least `success_threshold` count as
    successful."""

    def __init__(self, *, success_threshold: float = 1.0, trials: Regrader | None = None) -> None:
        """With `trials`, detectors can test what the reward depends on."""
        self.success_threshold, self.trials = success_threshold, trials
        self.findings: list[Finding] = []
        """The findings that detectors have reported so far."""
        self._steps: list[StepRecord] = []
        self._episodes: dict[int, Mapping[str, Trajectory]] = {}

    @property
    def episodes(self) -> Mapping[str, Trajectory]:
        """Some training episodes of the first and the last steps, keyed by id, without tokens. Empty without
        `trials`."""
        return {key: one for step in self._episodes.values() for key, one in step.items()}

    @property
    def steps(self) -> Sequence[StepRecord]:
        return self._steps

    @property
    def last_step(self) -> int:
        """The last step, or 0 before the first step."""
        return self._steps[-1].step if self._steps else 0

    def add(
        self,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        train: Iterable[Trajectory] = (),
        validation: Iterable[Trajectory] = (),
    ) -> None:
        """Add data of a step. A step that is already known replaces its old data and all later steps, because a resumed
        run repeats them."""
        train = list(train)
        if self.trials is not None and train:
            self._episodes[step] = {one.id: _light(one) for one in _some(train, MOST_PLAYED) if one.reward is not None}
        self.add_digests(step, metrics=metrics, train=summarize(train), validation=summarize(list(validation)))

    def add_digests(
        self,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        train: tuple[Digest, ...] = (),
        validation: tuple[Digest, ...] = (),
    ) -> None:
        """Add data of a step, like `add`, from what `summarize` returned."""
        while self._steps and self._steps[-1].step > step:
            self._episodes.pop(self._steps.pop().step, None)
        new = {"train": train, "validation": validation}
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
            self._episodes.pop(self._steps[place].step, None)


def read_steps(run: Path) -> Iterator[tuple[int, Mapping[str, float], list[Trajectory], list[Trajectory]]]:
    """Yield the number, metrics, training trajectories and validation trajectories of each step of a stored run, in
    order.

    Raises DataError if the folder has no metrics.jsonl, or if files are damaged.
    """
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise DataError(
            f"{run} has no metrics.jsonl, so it is not a training run; specify a run that `sparring train` wrote."
        )
    metrics, _ = read_metrics(path)
    for step in metrics:
        yield step, metrics[step], _stored_episodes(run, "train", step), _stored_episodes(run, "validation", step)


def _stored_episodes(run: Path, split: str, step: int) -> list[Trajectory]:
    path = run / "trajectories" / f"{split}-{step}.jsonl"
    return read_trajectories(path) if path.is_file() else []


def summarize(trajectories: Sequence[Trajectory]) -> tuple[Digest, ...]:
    """Return the digests of the episodes of one step, at most about `MOST_DIGESTS`."""
    digests = [digest for one in trajectories if (digest := Digest.of(one)) is not None]
    kept = {one.id for one in _some(trajectories, MOST_DIGESTS)}
    return tuple(one for one in digests if one.id in kept)


def _some(trajectories: Sequence[Trajectory], most: int) -> Sequence[Trajectory]:
    """Return about `most` trajectories. Groups are kept as a whole, because episodes of one task are compared with each
    other."""
    if len(trajectories) <= most:
        return trajectories
    places = {task_id: place for place, task_id in enumerate(dict.fromkeys(one.task.id for one in trajectories))}
    every = -(-len(trajectories) // most)
    return [one for one in trajectories if places[one.task.id] % every == 0]


def _light(one: Trajectory) -> Trajectory:
    """Return the trajectory without its tokens. The number of tokens is kept."""
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


def _call(call: Mapping[str, Any], results: Mapping[str, str]) -> RecordedCall:
    function = call["function"]
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, sort_keys=True)
    return RecordedCall(
        name=str(function.get("name")), arguments=text[:MOST_CHARACTERS], result=results.get(str(call.get("id")), "")
    )


def _facts(path: str, state: Json) -> Iterator[tuple[str, Json]]:
    """Yield the values in a state with their paths. In each branch, values near the root come first."""
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
