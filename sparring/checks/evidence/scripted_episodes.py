"""Episodes of scripted policies, run once for all rules on policies and reward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from sparring.agents.scripted import Asked, ScriptedPolicy, as_trajectory, saying
from sparring.checks.evidence.answer_forms import canonical, find_most_frequent, get_text
from sparring.checks.evidence.changed_answers import name_all_labels, replace_parts
from sparring.checks.evidence.correct_calls import Verdict, find_deeds
from sparring.checks.evidence.grading_inputs import Aspect
from sparring.checks.evidence.reference_episodes import (
    ReferenceEpisode,
    ReferenceEpisodes,
    find_references,
    make_silence,
)
from sparring.checks.evidence.scripts import (
    answer_at_once,
    make_busy,
    make_copying,
    make_guessing,
    make_never_answering,
)
from sparring.checks.evidence.subject import (
    EXPERT,
    GraderName,
    GradingFailedError,
    GradingOutageError,
    Subject,
    UndecidedError,
)
from sparring.checks.running.time_budget import OutOfTimeError
from sparring.environments import answer
from sparring.scorers.conduct import grades_behavior
from sparring.types import Json, Message, Task, Trajectory

NUM_TASKS = 24
"""The number of tasks for each policy, if episodes are fast."""
SECONDS = 1.5
"""The time in seconds after which a policy gets no more tasks. It gets at least FEWEST tasks, or fewer if the rule has
no time left."""
FEWEST = 4
SLOW_SECONDS = 4.0
"""The time in seconds after which a policy gets no more tasks in any case."""
BUSY = 5
"""The number of times that a busy policy repeats its first calls."""

POLICIES = (
    EXPERT, "says nothing", "never answers", "empty answer", "most frequent answer", "random", "every tool",
    "most frequent values", "every label", "wrong at once", "wrong", "busy", "busy and wrong",
)  # fmt: skip
"""The names of the policies. `example` is added if the prompt shows an example."""
AT_ONCE = (
    EXPERT,
    "says nothing",
    "empty answer",
    "most frequent answer",
    "most frequent values",
    "every label",
    "wrong at once",
    "example",
)
"""The policies that need no environment. Without an environment, the expert answers at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """An episode of one policy. Reward and score are None if the grader failed or is missing."""

    policy: str
    reference: ReferenceEpisode
    trajectory: Trajectory
    reward: float | None
    score: float | None
    failure: str | None
    """The reason why the episode could not be graded."""
    failed: GraderName | None
    """The grader that failed."""
    verdict: Verdict
    """The verdict on the answer and the calls, as far as they are graded."""
    reason: str = ""
    """The reason why the episode is incorrect, if its calls or its final state are the cause."""

    @property
    def is_wrong(self) -> bool:
        """True if the episode is known to be incorrect. An episode whose calls differ from the reference episode may
        also be correct."""
        return self.verdict is Verdict.WRONG

    @property
    def shown(self) -> dict[str, Json]:
        """The values that a finding shows as evidence."""
        last = self.trajectory.messages[-1]
        text = get_text(last) if last.get("role") == "assistant" else "(no answer)"
        return {
            "task": self.reference.task.id,
            "policy": self.policy,
            "said": clip(text),
            "right": clip(get_text(self.reference.answer) or canonical(dict(self.reference.parts or {}))),
            "reward": self.reward,
            "score": self.score,
            **({"why_wrong": self.reason} if self.reason else {}),
        }


_played: WeakKeyDictionary[Subject, dict[str, list[Episode]]] = WeakKeyDictionary()


async def get_episodes(subject: Subject, name: str) -> list[Episode]:
    """Return the episodes of a policy, which are computed once. All policies run on the same tasks. The result is empty
    if the policy does not apply to the recipe.

    Raises UndecidedError if the environment fails every time.
    """
    references = await find_references(subject)
    if references is None or not references.by_task:
        return []
    known = _played.setdefault(subject, {})
    if name not in known:
        known[name] = await _run_all(subject, references, name)
    return known[name]


async def get_all_episodes(subject: Subject) -> list[Episode]:
    """Return the episodes of every policy. Policies are left out if the environment failed, or if the time is used up.
    Raises GradingOutageError."""
    episodes: list[Episode] = []
    if subject.model_judges:
        await _grade_ahead(subject)
    for name in (*POLICIES, "example"):
        try:
            episodes += await get_episodes(subject, name)
        except GradingOutageError:
            raise
        except OutOfTimeError:
            if not episodes:
                raise
            break
        except UndecidedError:
            continue
    return episodes


async def _grade_ahead(subject: Subject) -> None:
    """Run the episodes of all policies, and grade them concurrently."""
    references, played = await find_references(subject), []
    if references is None:
        return
    for name in (*POLICIES, "example"):
        for reference, policy in _list_plans(subject, references, name):
            with suppress(UndecidedError):
                played.append(await _run_episode(subject, reference, policy))
    await subject.grade_ahead(played)


def _list_plans(
    subject: Subject, references: ReferenceEpisodes, name: str
) -> Iterator[tuple[ReferenceEpisode, ScriptedPolicy]]:
    """Yield the tasks for a policy, the sampled tasks first, each with its scripted policy."""
    policy_of = _make_policies(subject, references).get(name) if name != "example" else _make_example_policy(references)
    if policy_of is None or (subject.environment_class is None and name not in AT_ONCE):
        return
    chosen = references.sampled(subject)
    chosen += [reference for reference in references.by_task.values() if reference not in chosen][
        : NUM_TASKS - len(chosen)
    ]
    for reference in chosen[:FEWEST] if subject.model_judges else chosen:
        policy = policy_of(reference)
        if policy is not None:
            yield reference, policy


async def _run_all(subject: Subject, references: ReferenceEpisodes, name: str) -> list[Episode]:
    began, episodes, failures = time.monotonic(), [], []
    for reference, policy in _list_plans(subject, references, name):
        seconds = time.monotonic() - began
        if (len(episodes) >= FEWEST and seconds > SECONDS) or (episodes and seconds > SLOW_SECONDS):
            break
        try:
            trajectory = await _run_episode(subject, reference, policy)
        except OutOfTimeError:
            if not episodes:
                raise
            break
        except UndecidedError as error:
            failures.append(str(error))
            if len(failures) >= FEWEST:
                break
            continue
        episodes.append(await grade_episode(subject, references, name, reference, trajectory))
    if failures and not episodes:
        raise UndecidedError(failures[0])
    return episodes


async def _run_episode(subject: Subject, reference: ReferenceEpisode, policy: ScriptedPolicy) -> Trajectory:
    """Run a policy in the environment. Without an environment, use the policy's first message as the episode."""
    if subject.environment_class is not None:
        return await subject.run_episode(reference.task, policy, graded=False)
    message = policy.act(Asked(task=reference.task, messages=reference.task.messages, tools=(), turn=0))
    assert isinstance(message, Mapping), "policies that answer at once are plain functions"
    return as_trajectory(reference.task, message)


async def grade_episode(
    subject: Subject, references: ReferenceEpisodes, name: str, reference: ReferenceEpisode, trajectory: Trajectory
) -> Episode:
    """Grade an episode by the reward and the scorer."""
    reward, score, failure, failed = None, None, None, None
    try:
        trajectory = await subject.grade(trajectory)
        reward, score = trajectory.reward.total if trajectory.reward is not None else None, trajectory.score
    except GradingFailedError as error:
        failure, failed = str(error), error.grader
    verdict, reason = await _decide_verdict(subject, references, reference, trajectory)
    return Episode(
        policy=name,
        reference=reference,
        trajectory=trajectory,
        reward=reward,
        score=score,
        failure=failure,
        failed=failed,
        verdict=verdict,
        reason=reason,
    )


async def _decide_verdict(
    subject: Subject, references: ReferenceEpisodes, reference: ReferenceEpisode, trajectory: Trajectory
) -> tuple[Verdict, str]:
    """Return a verdict and its reason. The verdict covers the last message, the calls and the final state, as far as
    each of them is graded."""
    if Aspect.MESSAGE in references.graded and not _has_same_answer(references, reference, trajectory):
        may_do_the_same = grades_behavior(subject.scorer) and _is_answered(references, trajectory)
        return (Verdict.UNKNOWN if may_do_the_same else Verdict.WRONG), ""
    deeds = await find_deeds(subject)
    if deeds is None:
        return Verdict.RIGHT, ""
    try:
        return await deeds.verdict(reference, trajectory)
    except UndecidedError:
        return Verdict.UNKNOWN, ""


def _is_answered(references: ReferenceEpisodes, trajectory: Trajectory) -> bool:
    """Return True if an episode ends with an answer that is not empty and has the format of the correct answers."""
    parts = references.form.parts(trajectory.messages[-1])
    return parts is not None and any(str(value).strip() for value in parts.values())


def _has_same_answer(references: ReferenceEpisodes, reference: ReferenceEpisode, trajectory: Trajectory) -> bool:
    last = next((m for m in reversed(trajectory.messages) if m.get("role") == "assistant"), make_silence())
    if get_text(last).strip() == get_text(reference.answer).strip() and not reference.answer.get("tool_calls"):
        return True
    parts = references.form.parts(last)
    return parts is not None and reference.parts is not None and canonical(parts) == canonical(dict(reference.parts))


def _make_policies(
    subject: Subject, references: ReferenceEpisodes
) -> Mapping[str, Callable[[ReferenceEpisode], ScriptedPolicy | None]]:
    form, labels, max_turns = references.form, references.labels(), subject.config.environment.max_turns
    constant, _ = find_most_frequent(
        [get_text(g.answer) or canonical(dict(g.parts or {})) for g in references.by_task.values()]
    )
    usual = {name: find_most_frequent(values)[0] for name, values in labels.items()}

    def everywhere(policy: ScriptedPolicy) -> Callable[[ReferenceEpisode], ScriptedPolicy]:
        return lambda _: policy

    def wrong(reference: ReferenceEpisode) -> tuple[Message, ...]:
        return (*reference.script[:-1], form.message(replace_parts(reference.parts or {}, labels)))

    def constant_message(_: Task) -> Message:
        same = (
            g for g in references.by_task.values() if constant in (get_text(g.answer), canonical(dict(g.parts or {})))
        )
        return next(same).answer

    policies: dict[str, Callable[[ReferenceEpisode], ScriptedPolicy | None]] = {
        EXPERT: lambda reference: saying(EXPERT, reference.script),
        "says nothing": everywhere(answer_at_once("says nothing", lambda _: make_silence())),
        "most frequent answer": everywhere(answer_at_once("most frequent answer", constant_message)),
        "busy": lambda reference: (
            _make_busy("busy", reference.script) if references.has_expert or len(reference.script) > 2 else None
        ),
    }
    if subject.tools:
        policies["never answers"] = everywhere(make_never_answering())
    if labels:
        blank = dict.fromkeys(labels, "")
        policies |= {
            "empty answer": everywhere(answer_at_once("empty answer", lambda _: form.message(blank))),
            "random": everywhere(make_guessing("random", form, labels, f"{subject.config.run.seed}")),
            "every tool": everywhere(make_copying("every tool", form, labels, max_turns)),
            "most frequent values": everywhere(answer_at_once("most frequent values", lambda _: form.message(usual))),
            "every label": everywhere(
                answer_at_once("every label", lambda _: form.message(name_all_labels(usual, labels)))
            ),
            "wrong": lambda reference: saying("wrong", wrong(reference)) if reference.parts else None,
            "wrong at once": lambda reference: (
                saying("wrong at once", wrong(reference)[-1:]) if reference.parts else None
            ),
            "busy and wrong": lambda reference: (
                _make_busy("busy and wrong", wrong(reference)) if reference.parts else None
            ),
        }
    return policies


def _make_busy(name: str, script: Sequence[Message]) -> ScriptedPolicy | None:
    return make_busy(name, script, times=BUSY) if script[0].get("tool_calls") and len(script) > 1 else None


def _make_example_policy(references: ReferenceEpisodes) -> Callable[[ReferenceEpisode], ScriptedPolicy | None] | None:
    """Return a policy that copies the example from the prompt, if there is an example in the format of the answers."""
    from sparring.checks.rules.prompt import find_example

    def policy(reference: ReferenceEpisode) -> ScriptedPolicy | None:
        example = find_example(reference.task.messages, references)
        return None if example is None else saying("example", (answer(example),))

    return policy


def clip(text: str, most: int = 300) -> str:
    """Return a string truncated to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
