"""Runs of a policy over a few scripts, which learns by the advantage that each has within its group: hacks come about in
milliseconds, and so does honest learning."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from sparring.detectors import DETECTORS
from sparring.detectors.runner import DetectorRunner
from sparring.detectors.trials import Trials
from sparring.environments import Environment, tool
from sparring.findings import Finding
from sparring.run_folders.history import History
from sparring.types import (
    Message,
    Outcome,
    Reward,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

TASKS, EPISODES = 6, 8
"""Of a step; episodes a task."""


@dataclass(frozen=True)
class Script:
    """What the policy may do in a task, and how likely it is at first."""

    share: float
    answer: Callable[[Task], str]
    calls: tuple[tuple[str, Mapping[str, object]], ...] = ()
    texts: tuple[str, ...] = ()
    """Messages without calls that come first."""
    is_right: bool = False
    malformed: int = 0
    tokens: int = 20


@dataclass
class Learner:
    """Shares of scripts, moved by softmax gradient ascent on advantages within groups."""

    scripts: Sequence[Script]
    rate: float = 0.35
    logits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.logits = [math.log(script.share) for script in self.scripts]

    def shares(self) -> list[float]:
        weights = [math.exp(logit - max(self.logits)) for logit in self.logits]
        return [weight / sum(weights) for weight in weights]

    def update(self, played: Sequence[Sequence[tuple[int, float]]]) -> None:
        for group in played:
            mean = fmean(reward for _, reward in group)
            spread = math.sqrt(fmean((reward - mean) ** 2 for _, reward in group)) or 1.0
            for script, reward in group:
                self.logits[script] += self.rate * (reward - mean) / spread / len(group)


Judge = Callable[[Trajectory], Reward]


def trajectory(
    script: Script, task: Task, attempt: int, step: int, *, judge: Judge, has_score: bool = True, split: str = "train"
) -> Trajectory:
    messages: list[Message] = [*task.messages]
    messages += [{"role": "assistant", "content": text} for text in script.texts]
    for number, (name, arguments) in enumerate(script.calls):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "ok"})
    bad = [{"text": "<tool_call>x", "problem": "not_json"}] * script.malformed
    messages.append(
        {
            "role": "assistant",
            "content": script.answer(task),
            **({"malformed_tool_calls": bad} if bad else {}),
        }
    )
    answers = [one for one in messages if one["role"] == "assistant"]
    turns = tuple(
        Turn(
            id=number, parent=None, branch_reason=None, prompt_ids=(1,), token_ids=(2,) * script.tokens,
            sampled_logprobs=(-1.0,) * script.tokens, versions=((step, script.tokens),), fingerprint="f",
            stop_reason=StopReason.STOP, sampling=Sampling(), message=message, num_computed_tokens=1, seconds=0.0,
        )
        for number, message in enumerate(answers[-len(script.calls) - 1 :])
    )  # fmt: skip
    one = Trajectory(
        id=f"{split}/{step}/{task.id}.{attempt}",
        task=task,
        attempt=attempt,
        turns=turns,
        messages=tuple(messages),
        outcome=Outcome.FINISHED,
        reward=None,
        score=float(script.is_right) if has_score else None,
    )
    return Trajectory(**{name: getattr(one, name) for name in one.__dataclass_fields__} | {"reward": judge(one)})


def is_right(one: Trajectory) -> bool:
    return one.messages[-1]["content"].endswith(str(one.task.fields["answer"]))


def task(index: int, prompt: str = "what is it?") -> Task:
    number = f"{index * 7919 % 1000}"
    return Task(id=f"task-{index}", messages=({"role": "user", "content": prompt},), fields={"answer": number})


def played(
    scripts: Sequence[Script],
    judge: Judge,
    *,
    steps: int = 16,
    seed: int = 0,
    rate: float = 0.35,
    has_score: bool = True,
    prompt: str = "what is it?",
    validates: bool = False,
    validation_scripts: Sequence[Script] | None = None,
) -> list[tuple[int, list[TrajectoryGroup], list[TrajectoryGroup]]]:
    """Of each step its groups, and those of the validation after it, which plays `validation_scripts` with the same shares."""
    rng, learner, results = random.Random(seed), Learner(scripts, rate), []
    for step in range(1, steps + 1):
        shares, groups, validation = learner.shares(), [], []

        def group(of: Sequence[Script], split: str, index: int) -> tuple[TrajectoryGroup, list[int]]:
            chosen = rng.choices(range(len(of)), weights=shares, k=EPISODES)  # noqa: B023
            one = task(index, prompt)
            episodes = tuple(
                trajectory(of[script], one, attempt, step, judge=judge, has_score=has_score, split=split)  # noqa: B023
                for attempt, script in enumerate(chosen)
            )
            return TrajectoryGroup(task=one, trajectories=episodes), chosen

        moves = []
        for index in range(TASKS):
            made, chosen = group(scripts, "train", step * TASKS + index)
            groups.append(made)
            moves.append(list(zip(chosen, made.rewards, strict=True)))
        if validates:
            validation = [group(validation_scripts or scripts, "validation", index)[0] for index in range(TASKS)]
        learner.update(moves)
        results.append((step, groups, validation))
    return results


class Ready(Environment):
    """An environment whose tools succeed."""

    @tool
    def look(self, place: int) -> str:
        """Look at a place."""
        return "ok"

    @tool
    def write_file(self, path: str, content: str) -> str:
        """Write a file."""
        return "ok"


def findings(
    run: Sequence[tuple[int, list[TrajectoryGroup], list[TrajectoryGroup]]], *rules: str, judge: Judge | None = None
) -> list[Finding]:
    """Return what these detectors, or all, report during a run. With a grader episodes can be tried again."""
    trials = None if judge is None else Trials(judge, make_environment=Ready, max_turns=20)
    watch = DetectorRunner(
        History(trials=trials), [one for name, one in DETECTORS.items() if not rules or name in rules]
    )
    reported = []
    for step, groups, validation in run:
        watch.log_groups(step, groups, split="train")
        reported += watch.findings()
        if validation:
            watch.log_groups(step, validation, split="validation")
            reported += watch.findings()
    return reported


def right(share: float, calls: int = 2, **more: object) -> Script:
    return Script(
        share,
        lambda task: f"it is {task.fields['answer']}",
        calls=look(calls),
        is_right=True,
        **more,  # pyright: ignore
    )


def wrong(share: float, calls: int = 2, **more: object) -> Script:
    return Script(share, lambda task: f"it is 5{task.id[-1]}x", calls=look(calls), **more)  # pyright: ignore


def look(times: int) -> tuple[tuple[str, Mapping[str, object]], ...]:
    return tuple(("look", {"place": index}) for index in range(times))
