"""The episodes that the rules on policies and reward look at, played once for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from sparring.agents.scripted import Asked, ScriptedPolicy, as_trajectory, saying
from sparring.checks.answers import canonical, most_frequent, text_of
from sparring.checks.deeds import Verdict, deeds_of
from sparring.checks.golds import Gold, Golds, golds_of, silence
from sparring.checks.graded import Aspect
from sparring.checks.mutations import naming_all, other_parts
from sparring.checks.scripts import at_once, busy, copying, guessing, never_answering
from sparring.checks.subject import EXPERT, JudgeFailedError, JudgeName, JudgeOutageError, Subject, UndecidedError
from sparring.checks.timing import OutOfTimeError
from sparring.environments import answer
from sparring.scorers.conduct import grades_behavior
from sparring.types import Json, Message, Task, Trajectory

NUM_TASKS = 24
"""Tasks that each policy plays, where they are quick."""
SECONDS = 1.5
"""After which a policy plays no further task; it plays FEWEST at least, and fewer where the time of the rule ends."""
FEWEST = 4
SLOW_SECONDS = 4.0
"""After which it plays no further task in any case."""
BUSY = 5
"""How often a busy policy repeats its first calls."""

POLICIES = (
    EXPERT, "says nothing", "never answers", "empty answer", "most frequent answer", "random", "every tool",
    "most frequent values", "every label", "wrong at once", "wrong", "busy", "busy and wrong",
)  # fmt: skip
"""Beside them `example` plays where the prompt shows one."""
AT_ONCE = (
    EXPERT, "says nothing", "empty answer", "most frequent answer", "most frequent values", "every label", "wrong at once",
    "example",
)  # fmt: skip
"""Those that need no world to be judged (an expert without world answers at once)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What one policy made of one task. Reward and score are None where the judge failed or there is none."""

    policy: str
    gold: Gold
    trajectory: Trajectory
    reward: float | None
    score: float | None
    failure: str | None
    """Why it could not be judged."""
    failed: JudgeName | None
    """Which judge failed."""
    verdict: Verdict
    """Whether it says, and does, what a right episode does, as far as this is graded."""
    reason: str = ""
    """Why it is no right one, where that is about what it did."""

    @property
    def is_wrong(self) -> bool:
        """Whether it is known to be wrong: what was done in another way may be as good."""
        return self.verdict is Verdict.WRONG

    @property
    def shown(self) -> dict[str, Json]:
        """The evidence: short enough to read."""
        last = self.trajectory.messages[-1]
        said = text_of(last) if last.get("role") == "assistant" else "(no answer)"
        return {
            "task": self.gold.task.id, "policy": self.policy, "said": clipped(said),
            "right": clipped(text_of(self.gold.answer) or canonical(dict(self.gold.parts or {}))),
            "reward": self.reward, "score": self.score, **({"why_wrong": self.reason} if self.reason else {}),
        }  # fmt: skip


_played: WeakKeyDictionary[Subject, dict[str, list[Episode]]] = WeakKeyDictionary()


async def episodes_of(subject: Subject, name: str) -> list[Episode]:
    """What the policy of that name plays, over the same tasks as the others; none where it makes no sense.

    Raises UndecidedError when the world fails every time.
    """
    golds = await golds_of(subject)
    if golds is None or not golds.by_task:
        return []
    known = _played.setdefault(subject, {})
    if name not in known:
        known[name] = await _play_all(subject, golds, name)
    return known[name]


async def all_episodes(subject: Subject) -> list[Episode]:
    """Those of every policy. Where the environment failed, or the time was used up, they are left out. Raises
    JudgeOutageError."""
    episodes: list[Episode] = []
    if subject.model_judges:
        await _judge_ahead(subject)
    for name in (*POLICIES, "example"):
        try:
            episodes += await episodes_of(subject, name)
        except JudgeOutageError:
            raise
        except OutOfTimeError:
            if not episodes:
                raise
            break
        except UndecidedError:
            continue
    return episodes


async def _judge_ahead(subject: Subject) -> None:
    """Play what every policy plays, and have all of it judged at the same time."""
    golds, played = await golds_of(subject), []
    if golds is None:
        return
    for name in (*POLICIES, "example"):
        for gold, policy in _plans(subject, golds, name):
            with suppress(UndecidedError):
                played.append(await _episode(subject, gold, policy))
    await subject.judge_ahead(played)


def _plans(subject: Subject, golds: Golds, name: str) -> Iterator[tuple[Gold, ScriptedPolicy]]:
    """The tasks that a policy plays, those of the sample first, and what plays each."""
    policy_of = _policies(subject, golds).get(name) if name != "example" else _example_policy(golds)
    if policy_of is None or (subject.environment_class is None and name not in AT_ONCE):
        return
    chosen = golds.sampled(subject)
    chosen += [gold for gold in golds.by_task.values() if gold not in chosen][: NUM_TASKS - len(chosen)]
    for gold in chosen[:FEWEST] if subject.model_judges else chosen:
        policy = policy_of(gold)
        if policy is not None:
            yield gold, policy


async def _play_all(subject: Subject, golds: Golds, name: str) -> list[Episode]:
    began, episodes, failures = time.monotonic(), [], []
    for gold, policy in _plans(subject, golds, name):
        seconds = time.monotonic() - began
        if (len(episodes) >= FEWEST and seconds > SECONDS) or (episodes and seconds > SLOW_SECONDS):
            break
        try:
            trajectory = await _episode(subject, gold, policy)
        except OutOfTimeError:
            if not episodes:
                raise
            break
        except UndecidedError as error:
            failures.append(str(error))
            if len(failures) >= FEWEST:
                break
            continue
        episodes.append(await judged(subject, golds, name, gold, trajectory))
    if failures and not episodes:
        raise UndecidedError(failures[0])
    return episodes


async def _episode(subject: Subject, gold: Gold, policy: ScriptedPolicy) -> Trajectory:
    """Played in the world, or just said where the recipe's agent brings its own."""
    if subject.environment_class is not None:
        return await subject.play(gold.task, policy, judged=False)
    said = policy.act(Asked(task=gold.task, messages=gold.task.messages, tools=(), turn=0))
    assert isinstance(said, Mapping), "policies that answer at once are plain functions"
    return as_trajectory(gold.task, said)


async def judged(subject: Subject, golds: Golds, name: str, gold: Gold, trajectory: Trajectory) -> Episode:
    """An episode with what reward and scorer say of it."""
    reward, score, failure, failed = None, None, None, None
    try:
        trajectory = await subject.judge(trajectory)
        reward, score = trajectory.reward.total if trajectory.reward is not None else None, trajectory.score
    except JudgeFailedError as error:
        failure, failed = str(error), error.judge
    verdict, reason = await _verdict(subject, golds, gold, trajectory)
    return Episode(
        policy=name, gold=gold, trajectory=trajectory, reward=reward, score=score, failure=failure, failed=failed,
        verdict=verdict, reason=reason,
    )  # fmt: skip


async def _verdict(subject: Subject, golds: Golds, gold: Gold, trajectory: Trajectory) -> tuple[Verdict, str]:
    """By the last message and by what was done, as far as each is graded."""
    if Aspect.MESSAGE in golds.graded and not _says_the_same(golds, gold, trajectory):
        may_do_the_same = grades_behavior(subject.scorer) and _is_answered(golds, trajectory)
        return (Verdict.UNKNOWN if may_do_the_same else Verdict.WRONG), ""
    deeds = await deeds_of(subject)
    if deeds is None:
        return Verdict.RIGHT, ""
    try:
        return await deeds.verdict(gold, trajectory)
    except UndecidedError:
        return Verdict.UNKNOWN, ""


def _is_answered(golds: Golds, trajectory: Trajectory) -> bool:
    """Whether an episode ends with an answer in the form of the right ones, and something is in it."""
    parts = golds.form.parts(trajectory.messages[-1])
    return parts is not None and any(str(value).strip() for value in parts.values())


def _says_the_same(golds: Golds, gold: Gold, trajectory: Trajectory) -> bool:
    last = next((m for m in reversed(trajectory.messages) if m.get("role") == "assistant"), silence())
    if text_of(last).strip() == text_of(gold.answer).strip() and not gold.answer.get("tool_calls"):
        return True
    parts = golds.form.parts(last)
    return parts is not None and gold.parts is not None and canonical(parts) == canonical(dict(gold.parts))


def _policies(subject: Subject, golds: Golds) -> Mapping[str, Callable[[Gold], ScriptedPolicy | None]]:
    form, labels, max_turns = golds.form, golds.labels(), subject.config.environment.max_turns
    constant, _ = most_frequent([text_of(g.answer) or canonical(dict(g.parts or {})) for g in golds.by_task.values()])
    usual = {name: most_frequent(values)[0] for name, values in labels.items()}

    def everywhere(policy: ScriptedPolicy) -> Callable[[Gold], ScriptedPolicy]:
        return lambda _: policy

    def wrong(gold: Gold) -> tuple[Message, ...]:
        return (*gold.script[:-1], form.message(other_parts(gold.parts or {}, labels)))

    def constant_message(_: Task) -> Message:
        same = (g for g in golds.by_task.values() if constant in (text_of(g.answer), canonical(dict(g.parts or {}))))
        return next(same).answer

    policies: dict[str, Callable[[Gold], ScriptedPolicy | None]] = {
        EXPERT: lambda gold: saying(EXPERT, gold.script),
        "says nothing": everywhere(at_once("says nothing", lambda _: silence())),
        "most frequent answer": everywhere(at_once("most frequent answer", constant_message)),
        "busy": lambda gold: _busy("busy", gold.script),
    }
    if subject.tools:
        policies["never answers"] = everywhere(never_answering())
    if labels:
        blank = dict.fromkeys(labels, "")
        policies |= {
            "empty answer": everywhere(at_once("empty answer", lambda _: form.message(blank))),
            "random": everywhere(guessing("random", form, labels, f"{subject.config.run.seed}")),
            "every tool": everywhere(copying("every tool", form, labels, max_turns)),
            "most frequent values": everywhere(at_once("most frequent values", lambda _: form.message(usual))),
            "every label": everywhere(at_once("every label", lambda _: form.message(naming_all(usual, labels)))),
            "wrong": lambda gold: saying("wrong", wrong(gold)) if gold.parts else None,
            "wrong at once": lambda gold: saying("wrong at once", wrong(gold)[-1:]) if gold.parts else None,
            "busy and wrong": lambda gold: _busy("busy and wrong", wrong(gold)) if gold.parts else None,
        }
    return policies


def _busy(name: str, script: Sequence[Message]) -> ScriptedPolicy | None:
    return busy(name, script, times=BUSY) if script[0].get("tool_calls") and len(script) > 1 else None


def _example_policy(golds: Golds) -> Callable[[Gold], ScriptedPolicy | None] | None:
    """Copies the example out of the prompt, where there is one in the form of the answers."""
    from sparring.checks.prompt import example_in

    def policy(gold: Gold) -> ScriptedPolicy | None:
        example = example_in(gold.task.messages, golds)
        return None if example is None else saying("example", (answer(example),))

    return policy


def clipped(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
