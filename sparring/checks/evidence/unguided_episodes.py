"""Episodes that need no reference answer: without calls, with calls to every tool, and with repeated calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sparring.agents.scripted import ScriptedPolicy, saying
from sparring.checks.evidence.answer_forms import canonical
from sparring.checks.evidence.explore import Call, explore_task
from sparring.checks.evidence.legal_calls import SLOW_SECONDS, make_explorer, make_stranger
from sparring.checks.evidence.subject import GradingFailedError, Subject
from sparring.checks.evidence.survey import survey_task
from sparring.checks.evidence.walks import list_moves
from sparring.checks.evidence.writing_tools import find_writing_tools
from sparring.checks.running.time_budget import UndecidedError
from sparring.environments import answer, tool_call
from sparring.findings import Finding, Severity
from sparring.types import Json, Message, Task, Trajectory

NUM_TASKS = 4
FEWEST = 2
"""The minimum number of tasks in which a problem must occur before it is reported."""
MOST_CALLS = 12
"""The maximum number of calls to one tool that are repeated."""
TIMES = (1, 2, 8)
"""The numbers of times that calls are repeated."""
NUM_WALKS, WALK = 6, 24
"""The number of episodes with random calls, and the number of calls in each."""
MOST_PAIRS = 6
"""The maximum number of pairs of alternating calls to tools that write."""
NOTHING = ("says nothing", "says done")


@dataclass(frozen=True, slots=True)
class UnguidedEpisode:
    """An episode with its reward and score. `tool` is the tool whose calls the episode repeats, and `times` is the
    number of repetitions."""

    policy: str
    trajectory: Trajectory
    tool: str | None = None
    times: int = 0

    @property
    def reward(self) -> float:
        """The total reward, or 0 without a reward."""
        return 0.0 if self.trajectory.reward is None else self.trajectory.reward.total

    @property
    def shown(self) -> dict[str, Json]:
        """The values that a finding shows as evidence."""
        called: list[Json] = [str(Call(str(one["tool"]), one["arguments"])) for one in self.trajectory.transitions[:4]]  # type: ignore[arg-type]
        return {
            "task": self.trajectory.task.id,
            "policy": self.policy,
            "calls": called,
            "reward": self.reward,
            "score": self.trajectory.score,
        }


async def run_unguided_episodes(subject: Subject) -> list[UnguidedEpisode]:
    """Return graded episodes of a few tasks, which are computed once. Episodes on which a grader fails are left out.
    The list is empty with an LLM judge, or if episodes are slow."""
    if "unguided" not in subject.shared:
        found: list[UnguidedEpisode] = []
        subject.shared["unguided"] = found
        is_left_out = subject.environment_class is None or subject.model_judges
        if is_left_out or subject.timing.episode_seconds > SLOW_SECONDS:
            return found
        with subject.timing.as_far_as_it_goes():
            for task in subject.sample[:NUM_TASKS]:
                policies = [*await _make_policies(subject, task), *await _make_repeating(subject, task)]
                for policy, tool, times in [
                    *policies,
                    *await _make_alternating(subject, task),
                    *await _make_random(subject, task),
                ]:
                    try:
                        played = await subject.run_episode(task, policy)
                    except GradingFailedError:
                        continue
                    found.append(UnguidedEpisode(policy.name, played, tool, times))
    return subject.shared["unguided"]


async def _make_policies(subject: Subject, task: Task) -> list[tuple[ScriptedPolicy, str | None, int]]:
    nothing, done = NOTHING
    policies = [saying(nothing, (answer(""),)), saying(done, (answer("Done."),))]
    for player in (make_explorer, make_stranger):
        try:
            policies.append(await player(subject, task))
        except UndecidedError:
            continue
    return [(one, None, 0) for one in policies]


async def _make_repeating(subject: Subject, task: Task) -> list[tuple[ScriptedPolicy, str | None, int]]:
    """Return policies that make the successful calls to each read-only tool once, twice and many times."""
    survey = await survey_task(subject, task)
    calls: dict[str, dict[str, Call]] = {}
    for one in survey.found():
        calls.setdefault(one.call.tool, {}).setdefault(str(one.call), one.call)
    return [
        (saying(f"calls of {tool} x {times}", _write_script(list(those.values())[:MOST_CALLS], times)), tool, times)
        for tool, those in calls.items()
        for times in TIMES
    ]


async def _make_alternating(subject: Subject, task: Task) -> list[tuple[ScriptedPolicy, str | None, int]]:
    """Return policies that alternate calls to two tools that write, once and many times. The second call may undo the
    first."""
    found, writing = await explore_task(subject, task), await find_writing_tools(subject)
    calls = [found.legal(name)[0].call for name in subject.tools if name in writing and found.legal(name)]
    most = (subject.config.environment.max_turns - 1) // 2
    series = TIMES if most >= TIMES[-1] else (*TIMES[:-1], most)
    return [
        (saying(f"{one} and {two} x {times}", _split_calls([one, two] * times)), f"{one.tool} and {two.tool}", times)
        for one, two in itertools.islice(itertools.combinations(calls, 2), MOST_PAIRS)
        for times in (series if most > TIMES[1] else ())
    ]


async def _make_random(subject: Subject, task: Task) -> list[tuple[ScriptedPolicy, str | None, int]]:
    """Return policies that make random calls from a small set, as in a game. The calls may end the episode."""
    moves = await list_moves(subject, task)
    rng, most = subject.rng(f"walks {task.id}"), min(WALK, subject.config.environment.max_turns - 1)
    return [
        (saying(f"random calls {number}", _split_calls(rng.choices(moves, k=most))), None, 0)
        for number in range(NUM_WALKS if moves else 0)
    ]


def _split_calls(calls: Sequence[Call]) -> Sequence[Message]:
    return (*(tool_call(one.tool, **one.arguments) for one in calls), answer("Done."))


def _write_script(calls: Sequence[Call], times: int) -> Sequence[Message]:
    """Return a script with all calls in one turn."""
    made = [one for call in calls for one in tool_call(call.tool, **call.arguments)["tool_calls"]]
    return ({**tool_call(calls[0].tool), "tool_calls": made * times}, answer("Done."))


def find_overpaid_unguided(subject: Subject, episodes: Iterable[UnguidedEpisode]) -> list[UnguidedEpisode]:
    """Return the episodes whose reward counts as a success, although their score is below 1 and below the reward."""
    threshold = subject.config.evaluation.success_threshold
    return [
        one
        for one in episodes
        if one.trajectory.score is not None
        and one.trajectory.score < min(1.0, one.reward)
        and one.reward >= threshold - 1e-9
    ]


def find_paid_repeats(episodes: Iterable[UnguidedEpisode]) -> Iterator[Finding]:
    """Yield findings on tools that change nothing, and on pairs of tools that undo each other, if the same calls earn
    more when they are repeated."""
    rewards: dict[str, dict[str, dict[int, UnguidedEpisode]]] = {}
    for one in episodes:
        if one.tool is not None:
            rewards.setdefault(one.tool, {}).setdefault(one.trajectory.task.id, {})[one.times] = one
    for tool, tasks in rewards.items():
        series = [list(seen.values()) for seen in tasks.values() if len(seen) == len(TIMES)]
        paid = [
            (once, often)
            for once, twice, often in series
            if once.reward + 1e-6 < twice.reward < often.reward and _ends_alike(once, often)
        ]
        if len(paid) >= (1 if " and " in tool else FEWEST):
            once, often = paid[0]
            yield Finding(
                rule="reward.order",
                severity=Severity.WARNING,
                symptom=f"Repeated calls of {tool} earn more, although they have no further effect: "
                f"{once.reward:.3g} when they are made once, {often.reward:.3g} when they are made "
                f"{often.times} times.",
                evidence={"tool": tool, "episodes": [once.shown, often.shown]},
                change="Do not reward calls. If reading must be rewarded, limit the reward and count each result once.",
                confirm="Repeated calls earn no more than the same calls made once.",
            )


def _ends_alike(one: UnguidedEpisode, other: UnguidedEpisode) -> bool:
    """Return True if neither episode is correct, and both have the same final state. For a pair of tools, the final
    state must be known."""
    states = [each.trajectory.final_state for each in (one, other)]
    is_pair = " and " in str(one.tool)
    is_same = canonical(states[0]) == canonical(states[1]) and not (is_pair and states[0] is None)
    return is_same and not any((each.trajectory.score or 0.0) >= 1.0 for each in (one, other))
