"""Episodes that need no right answer to be known: nothing is done, every tool is called, calls are made again and again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sparring.agents.scripted import ScriptedPolicy, saying
from sparring.checks.answers import canonical
from sparring.checks.calls import SLOW_SECONDS, explorer, stranger
from sparring.checks.explore import Call, explored
from sparring.checks.subject import JudgeFailedError, Subject
from sparring.checks.survey import surveyed
from sparring.checks.timing import UndecidedError
from sparring.checks.walks import moves_of
from sparring.checks.writes import writing_tools
from sparring.environments import answer, tool_call
from sparring.findings import Finding, Severity
from sparring.types import Json, Message, Task, Trajectory

NUM_TASKS = 4
FEWEST = 2
"""Tasks in which the same is seen, before it is reported."""
MOST_CALLS = 12
"""Calls of one tool that are made again and again."""
TIMES = (1, 2, 8)
"""How often each is made."""
NUM_WALKS, WALK = 6, 24
"""Episodes of random calls, and their calls."""
MOST_PAIRS = 6
"""Pairs of calls of tools that write, which are made in turn."""
NOTHING = ("says nothing", "says done")


@dataclass(frozen=True, slots=True)
class Unguided:
    """An episode with its reward and score; the tool whose calls it repeats, and how often."""

    policy: str
    trajectory: Trajectory
    tool: str | None = None
    times: int = 0

    @property
    def reward(self) -> float:
        return 0.0 if self.trajectory.reward is None else self.trajectory.reward.total

    @property
    def shown(self) -> dict[str, Json]:
        called: list[Json] = [str(Call(str(one["tool"]), one["arguments"])) for one in self.trajectory.transitions[:4]]  # type: ignore[arg-type]
        return {
            "task": self.trajectory.task.id, "policy": self.policy, "calls": called, "reward": self.reward,
            "score": self.trajectory.score,
        }  # fmt: skip


async def unguided(subject: Subject) -> list[Unguided]:
    """Episodes of a few tasks, judged; played once. Those that a judge fails on are left out."""
    if "unguided" not in subject.shared:
        found: list[Unguided] = []
        subject.shared["unguided"] = found
        is_left_out = subject.environment_class is None or subject.model_judges
        if is_left_out or subject.timing.episode_seconds > SLOW_SECONDS:
            return found
        with subject.timing.as_far_as_it_goes():
            for task in subject.sample[:NUM_TASKS]:
                policies = [*await _policies(subject, task), *await _repeated(subject, task)]
                for policy, tool, times in [
                    *policies,
                    *await _done_and_undone(subject, task),
                    *await _random_walks(subject, task),
                ]:
                    try:
                        played = await subject.play(task, policy)
                    except JudgeFailedError:
                        continue
                    found.append(Unguided(policy.name, played, tool, times))
    return subject.shared["unguided"]


async def _policies(subject: Subject, task: Task) -> list[tuple[ScriptedPolicy, str | None, int]]:
    nothing, done = NOTHING
    policies = [saying(nothing, (answer(""),)), saying(done, (answer("Done."),))]
    for player in (explorer, stranger):
        try:
            policies.append(await player(subject, task))
        except UndecidedError:
            continue
    return [(one, None, 0) for one in policies]


async def _repeated(subject: Subject, task: Task) -> list[tuple[ScriptedPolicy, str | None, int]]:
    """What each tool that reads is asked for and finds, once, twice and often."""
    survey = await surveyed(subject, task)
    calls: dict[str, dict[str, Call]] = {}
    for one in survey.found():
        calls.setdefault(one.call.tool, {}).setdefault(str(one.call), one.call)
    return [
        (saying(f"calls of {tool} x {times}", _script(list(those.values())[:MOST_CALLS], times)), tool, times)
        for tool, those in calls.items() for times in TIMES
    ]  # fmt: skip


async def _done_and_undone(subject: Subject, task: Task) -> list[tuple[ScriptedPolicy, str | None, int]]:
    """Legal calls of tools that write, each in turn with one of another tool, once and often: what one does, the other may
    undo."""
    found, writing = await explored(subject, task), await writing_tools(subject)
    calls = [found.legal(name)[0].call for name in subject.tools if name in writing and found.legal(name)]
    most = (subject.config.environment.max_turns - 1) // 2
    series = TIMES if most >= TIMES[-1] else (*TIMES[:-1], most)
    return [
        (saying(f"{one} and {two} x {times}", _one_a_turn([one, two] * times)), f"{one.tool} and {two.tool}", times)
        for one, two in itertools.islice(itertools.combinations(calls, 2), MOST_PAIRS)
        for times in (series if most > TIMES[1] else ())
    ]


async def _random_walks(subject: Subject, task: Task) -> list[tuple[ScriptedPolicy, str | None, int]]:
    """Calls drawn out of a few, as in a game, which may end the episode."""
    moves = await moves_of(subject, task)
    rng, most = subject.rng(f"walks {task.id}"), min(WALK, subject.config.environment.max_turns - 1)
    return [
        (saying(f"random calls {number}", _one_a_turn(rng.choices(moves, k=most))), None, 0)
        for number in range(NUM_WALKS if moves else 0)
    ]


def _one_a_turn(calls: Sequence[Call]) -> Sequence[Message]:
    return (*(tool_call(one.tool, **one.arguments) for one in calls), answer("Done."))


def _script(calls: Sequence[Call], times: int) -> Sequence[Message]:
    """All calls in one turn."""
    made = [one for call in calls for one in tool_call(call.tool, **call.arguments)["tool_calls"]]
    return ({**tool_call(calls[0].tool), "tool_calls": made * times}, answer("Done."))


def overpaid_unguided(subject: Subject, episodes: Iterable[Unguided]) -> list[Unguided]:
    """Those whose reward counts as success, although their score is below 1 and below the reward."""
    threshold = subject.config.evaluation.success_threshold
    return [
        one for one in episodes
        if one.trajectory.score is not None and one.trajectory.score < min(1.0, one.reward)
        and one.reward >= threshold - 1e-9
    ]  # fmt: skip


def paid_repeats(episodes: Iterable[Unguided]) -> Iterator[Finding]:
    """Tools that change nothing, and pairs of tools of which one undoes what the other does, whose calls earn more when the same
    ones are made again."""
    rewards: dict[str, dict[str, dict[int, Unguided]]] = {}
    for one in episodes:
        if one.tool is not None:
            rewards.setdefault(one.tool, {}).setdefault(one.trajectory.task.id, {})[one.times] = one
    for tool, tasks in rewards.items():
        series = [list(seen.values()) for seen in tasks.values() if len(seen) == len(TIMES)]
        paid = [
            (once, often) for once, twice, often in series
            if once.reward + 1e-6 < twice.reward < often.reward and _ends_alike(once, often)
        ]  # fmt: skip
        if len(paid) >= (1 if " and " in tool else FEWEST):
            once, often = paid[0]
            yield Finding(
                rule="reward.order", severity=Severity.WARNING,
                symptom=f"The same calls of {tool} are paid again and again, although nothing more comes of it: "
                f"{once.reward:.3g} when they are made once, {often.reward:.3g} for {often.times} times.",
                evidence={"tool": tool, "episodes": [once.shown, often.shown]},
                change="Do not pay for calls; if looking must be paid, bound it and pay each thing once.",
                confirm="Calls that are repeated earn what they earn once.",
            )  # fmt: skip


def _ends_alike(one: Unguided, other: Unguided) -> bool:
    """Whether no episode is right, and both leave the same: a pair of calls needs a final state to show it."""
    states = [each.trajectory.final_state for each in (one, other)]
    is_pair = " and " in str(one.tool)
    is_same = canonical(states[0]) == canonical(states[1]) and not (is_pair and states[0] is None)
    return is_same and not any((each.trajectory.score or 0.0) >= 1.0 for each in (one, other))
