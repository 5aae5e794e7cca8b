"""Rules on reproducibility: the environment must be the same in another process, in a different order, and at another
time and place."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sparring.checks.evidence.legal_calls import make_policies
from sparring.checks.evidence.subject import Subject, find_first_difference, write_transcript
from sparring.checks.running.other_process import OTHER_HASH_SEED, SEED_VARIABLE, ask_other_process
from sparring.checks.running.second_process import fingerprint
from sparring.checks.running.time_budget import MOST_PATIENT, OutOfTimeError, TimedOutError, UndecidedError
from sparring.findings import Finding, Severity
from sparring.types import Json, Task, Trajectory

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
LONGEST_SECONDS = 30.0
"""The seconds that another process may take on an idle machine."""


@dataclass(frozen=True, slots=True)
class Change:
    """A condition that is different in the other process, and the advice for a recipe that depends on it."""

    when: str
    change: str
    variables: Mapping[str, str] = field(default_factory=dict)
    severity: Severity = Severity.ERROR


CLOCK = Change(
    "when the clock is set a year ahead",
    "Take dates and times from the task; `environment.clock` names the lines of code.",
)
BACKWARDS = Change("when episodes run in another order", "Keep nothing between episodes: no cache, no counter.")
FOLDER = Change(
    "in another working directory",
    "Open files relative to the module (`Path(__file__).parent`), not relative to the folder in which the command was "
    "started.",
    severity=Severity.WARNING,
)
HASH_SEED = Change(
    "in another process, with another hash seed",
    "Sort everything that is read from sets and directories, and do not use `hash`.",
)
TIME_ZONE = Change(
    "in another time zone",
    "State the time zone when you read and write times: `datetime.fromtimestamp(t, UTC)`, `time.gmtime`, "
    "`calendar.timegm`.",
    {"TZ": "Asia/Kathmandu"},
)
LOCALE = Change(
    "in another locale",
    "State the encoding of files, and sort and format without the locale.",
    {"LC_ALL": "C", "LANG": "C"},
    Severity.WARNING,
)
USER = Change(
    "for another user",
    "Take names from the task, not from the user who is logged in.",
    {"USER": "somebody", "LOGNAME": "somebody"},
    Severity.WARNING,
)
# The clock comes before the time zone, because a date depends on both.
CHANGES = (HASH_SEED, CLOCK, TIME_ZONE, FOLDER, BACKWARDS, LOCALE, USER)
_WITHOUT_FOLDER = tuple(one for one in CHANGES if one is not FOLDER)
PROCESS = Change(
    "in another process", "Seed random values that are drawn at import, and do not use ids of processes or objects."
)


async def same_elsewhere(subject: Subject) -> Iterable[Finding]:
    """Tasks, tools and episodes are the same in another process: with a different hash seed, time zone, locale, working
    directory and user, in a different order, and with the clock set a year ahead.

    A resumed run, a replay, and an evaluation on another machine next month must see the same environment. The finding
    states the condition that causes the difference. Common causes are the order of sets, dates in results, times
    without a time zone, random numbers drawn at import, and state that earlier episodes left behind. Read the time from
    the task, sort the elements of sets, and keep nothing between episodes.
    """
    episodes = await _episodes(subject)
    later = await _later(subject)
    difference = _difference_elsewhere(subject, episodes, later)
    if difference is not None:
        changes = CHANGES if later["stopped_by_folder"] is None else _WITHOUT_FOLDER
        cause, difference = await _cause(subject, episodes, changes, difference)
    elif later["stopped_by_folder"] is not None:
        cause, difference = FOLDER, {"what": "no conversation", "reason": later["stopped_by_folder"]}
    else:
        return ()
    return [
        Finding(
            rule="environment.same_elsewhere",
            severity=cause.severity,
            symptom=f"the same recipe gives {difference.pop('what')} {cause.when}.",
            evidence=difference,
            change=cause.change,
            confirm=AGAIN,
        )
    ]


async def _cause(
    subject: Subject,
    episodes: Sequence[tuple[Task, str, Trajectory]],
    changes: Sequence[Change],
    difference: dict[str, Json],
) -> tuple[Change, dict[str, Json]]:
    """Return the condition that causes a difference, and the difference. The condition is the other process itself, or
    otherwise the first change that causes a difference together with the changes before it. `difference` is the
    difference that all changes together cause.

    Each process takes seconds to start, so the function uses a binary search."""
    causes = (PROCESS, *changes)
    low, high = 0, len(causes) - 1
    with suppress(OutOfTimeError, TimedOutError):
        while low < high:
            middle = (low + high) // 2
            there = await _elsewhere(subject, episodes, causes[1 : middle + 1])
            found = _difference_elsewhere(subject, episodes, there)
            if found is None:
                low = middle + 1
            else:
                high, difference = middle, found
        return causes[high], difference
    return PROCESS, difference


async def tool_order(subject: Subject) -> Iterable[Finding]:
    """The tools are offered in the same order every time.

    The list of tools is part of every prompt. A different order gives the model a different prompt, and prevents the
    reuse of cached computations. Define tools as methods. If you override `offered_tools`, return a sorted list.
    """
    cls = subject.environment_class
    assert cls is not None, "the rule needs an environment"
    here = [list(cls.offered_tools()) for _ in range(3)]
    there = (await _later(subject))["offered"]
    orders = [[str(one["function"]["name"]) for one in offered] for offered in (*here, there)]
    if here[0] == here[1] == here[2] == there:
        return ()
    return [
        Finding(
            rule="environment.tool_order",
            severity=Severity.ERROR,
            symptom="the tools that the model receives differ from one time to the next.",
            evidence={"in_this_process": orders[:3], "in_another": orders[3]},
            change="Return the tools in the same order and with the same text: sort them by name.",
            confirm=AGAIN,
        )
    ]


async def _episodes(subject: Subject) -> list[tuple[Task, str, Trajectory]]:
    """Run the sampled tasks in this process, and return (task, policy, trajectory) of each episode."""
    episodes = []
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            for policy in await make_policies(subject, task):
                episodes.append((task, policy.name, await subject.run_episode(task, policy, graded=False)))
    return episodes


async def _later(subject: Subject) -> dict[str, Json]:
    """Return the episodes of a process in which all conditions are changed. The episodes run once. `stopped_by_folder`
    is the error that prevented the episodes in another working directory."""
    if "later" not in subject.shared:
        episodes, reason = await _episodes(subject), None
        try:
            later = await _elsewhere(subject, episodes, CHANGES)
        except (OutOfTimeError, TimedOutError):
            raise
        except UndecidedError as error:
            reason = str(error)
            later = await _elsewhere(subject, episodes, _WITHOUT_FOLDER)
        subject.shared["later"] = {**later, "stopped_by_folder": reason}
    return subject.shared["later"]


async def _elsewhere(
    subject: Subject, episodes: Sequence[tuple[Task, str, Trajectory]], changes: Collection[Change]
) -> dict[str, Json]:
    """Return what `second_process.run_episodes` returns in a separate process. Raises UndecidedError if the process
    does not return a result, and TimedOutError or OutOfTimeError if it ran no episode."""
    request = {
        "seconds": subject.timing.left,
        "call_seconds": subject.watch.seconds * subject.watch.patience,
        "start_seconds": subject.watch.start_seconds * subject.watch.patience,
        "recipe": str(subject.recipe.resolve()),
        "overrides": list(subject.overrides),
        "shifts_clock": CLOCK in changes,
        "backwards": BACKWARDS in changes,
        "other_folder": FOLDER in changes,
        "episodes": [
            {"task": task.id, "policy": name, "script": [turn.message for turn in played.turns]}
            for task, name, played in episodes
        ],
    }
    here = os.environ.get(SEED_VARIABLE, "")
    other = "1234" if here == OTHER_HASH_SEED else OTHER_HASH_SEED
    variables = {SEED_VARIABLE: here if here and HASH_SEED not in changes else other}
    played = await ask_other_process(
        "sparring.checks.running.second_process",
        request,
        limit=min(subject.timing.left, LONGEST_SECONDS * MOST_PATIENT) + subject.watch.limit("reset"),
        variables=variables | {name: value for one in changes for name, value in one.variables.items()},
    )
    late = played["unplayed"]
    if late is not None and not any(played["transcripts"]):
        raise (TimedOutError if late["is_late"] else OutOfTimeError)(late["reason"])
    return played


def _difference_elsewhere(
    subject: Subject, episodes: Sequence[tuple[Task, str, Trajectory]], there: Mapping[str, Json]
) -> dict[str, Json] | None:
    if there["tools"] != list(subject.tools):
        return {"what": "other tools", "here": list(subject.tools), "there": there["tools"]}
    for (task, name, played), lines in zip(episodes, there["transcripts"], strict=True):
        if there["tasks"].get(task.id) != fingerprint(task):
            missing = task.id not in there["tasks"]
            return {
                "what": "other tasks",
                "task": task.id,
                "there": "it is missing" if missing else "its content differs",
            }
        difference = None if lines is None else find_first_difference(write_transcript(played.messages), lines)
        if difference is not None:
            return {"what": "another conversation", "task": task.id, "policy": name, **difference}
    return None
