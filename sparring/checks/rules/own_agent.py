"""Rules on an agent of the user's own: whether its episodes run, repeat, stay apart and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparring.checks.evidence.leaked_resources import count_resources, list_globals, measure_sizes
from sparring.checks.evidence.observed_effects import Observed, SideEffects
from sparring.checks.evidence.own_agent import OwnAgent, OwnEpisode, explore_all, get_own_agent
from sparring.checks.evidence.subject import Subject, find_first_difference
from sparring.checks.evidence.wire_policies import BAD_CALLS, make_bad_caller, make_repeater
from sparring.checks.rules.leaks import SETTLE_SECONDS
from sparring.findings import Finding, Severity
from sparring.types import Json, Outcome

AGAIN = "Run `sparring check RECIPE --only agent` again: the finding is gone."
_HANGS = "had not returned"
_MANY = 3
"""The number of episodes of a window in the search for leaks."""


async def runs(subject: Subject) -> Iterable[Finding]:
    """The agent plays its episodes: it requests turns from the policy it is given, ends by itself, and returns or reports a
    valid result.

    A scripted policy calls every tool that the agent offers and then answers, and another one repeats a call for ever. An
    agent that raises, hangs, never calls the policy, or calls another address cannot be trained. An `async` function that
    blocks, for example with the synchronous client of OpenAI, stops all episodes: write a plain function, which runs in a
    thread, or use `AsyncOpenAI`.
    """
    episodes = await explore_all(subject, needs="nothing")
    if not any(one.is_failure_of_agent for one in episodes):
        agent = get_own_agent(subject)
        with subject.timing.as_far_as_it_goes():
            episodes = [*episodes, await agent.play(agent.tasks[0], make_repeater())]
    failed = [one for one in episodes if one.is_failure_of_agent]
    if failed:
        first = failed[0]
        hangs = _HANGS in str(first.failure) and get_own_agent(subject).code is not None
        change = (
            "Do not block in an async function: write `def play` without async, which runs in a thread, or use AsyncOpenAI. "
            "Give every wait a time limit."
            if hangs
            else "Correct the agent until an episode with any answers of the policy ends by itself."
        )
        return [
            _finding(
                "agent.runs",
                Severity.ERROR,
                f"the agent ({get_own_agent(subject).name}) failed in {len(failed)} of {len(episodes)} episodes: "
                f"{_shorten(first.failure)}",
                {
                    "task": first.task.id,
                    "policy": first.policy,
                    "turns": len(first.requests),
                    "failure": first.failure,
                },
                change,
            )
        ]
    idle = [one for one in episodes if not one.requests]
    if idle:
        return [
            _finding(
                "agent.runs",
                Severity.ERROR,
                f"the agent requested no turn from the policy in {len(idle)} of {len(episodes)} episodes, so its reward is not "
                "the policy's.",
                {"tasks": [one.task.id for one in idle]},
                "Use `session.client()` or the base URL and key that the episode gets; do not set another base URL.",
            )
        ]
    return []


async def same_twice(subject: Subject) -> Iterable[Finding]:
    """The same policy in the same task sees the same conversation when it plays again later.

    All tasks are played once, and then again in the opposite order. A difference in prompts, tool results or the state that
    is handed over means that episodes share something, such as a database, a cache or a file, or that the agent reads a
    clock or draws unseeded random numbers. Then the members of a group do not solve the same task, and no episode can be
    repeated. Give every episode its own copy of everything that its tools change.
    """
    episodes = await explore_all(subject)
    again = {one.task.id: one for one in await explore_all(subject, round="again", backwards=True)}
    for first in episodes:
        second = again.get(first.task.id)
        if second is None or _failed(first, second):
            continue
        what, differs = "conversation", find_first_difference(first.transcript, second.transcript)
        if differs is None:
            what, differs = "state that is handed over", find_first_difference(first.handed_over, second.handed_over)
        if differs is not None:
            return [
                _finding(
                    "agent.same_twice",
                    Severity.ERROR,
                    f"the {what} of task {first.task.id} differs when the same policy plays it again after other tasks.",
                    {"task": first.task.id, **differs},
                    "Give every episode its own copy of what its tools change (database, files, caches), and derive times "
                    "and random numbers from the task.",
                )
            ]
    return []


async def isolation(subject: Subject) -> Iterable[Finding]:
    """Episodes that run at the same time do not affect each other.

    The same tasks are played one after the other and at the same time. Training always runs many episodes at once, in one
    process for an agent that is a function.
    """
    agent = get_own_agent(subject)
    if list(await same_twice(subject)):
        return []  # episodes that differ anyway are no evidence
    alone = {one.task.id: one for one in await explore_all(subject)}
    tasks = [task for task in agent.tasks if task.id in alone]
    tasks = tasks if len(tasks) > 1 else tasks * 2
    for together in await agent.explore_together(tasks):
        first = alone[together.task.id]
        if first.failure is None and together.failure is not None:
            differs: dict[str, Json] | None = {"failure": together.failure}
        elif _failed(first, together):
            continue
        else:
            differs = find_first_difference(
                [*first.transcript, *first.handed_over], [*together.transcript, *together.handed_over]
            )
        if differs is not None:
            return [
                _finding(
                    "agent.isolation",
                    Severity.ERROR,
                    f"an episode of task {first.task.id} that runs together with others differs from the same episode alone.",
                    {"task": first.task.id, **differs},
                    "Keep the state of an episode in local variables or in an object of its own, not in globals, shared "
                    "connections or files.",
                )
            ]
    return []


async def leaks(subject: Subject) -> Iterable[Finding]:
    """Episodes leave nothing behind: no threads, processes, open files, connections, temporary files or growing globals.

    The rule counts before and after several episodes, twice, so that what is created once does not count. For agents in
    other processes, it looks for processes that still hold the key of an episode that is over.
    """
    agent = get_own_agent(subject)
    await explore_all(subject)
    with _private_temporary_folder() as folder:
        windows = [await _left_by_episodes(agent, folder) for _ in range(2)]
    left = {name: number for name, number in windows[1].items() if name in windows[0]}
    if not left:
        return []
    return [
        _finding(
            "agent.leaks",
            Severity.ERROR,
            f"{_MANY} episodes left behind: " + ", ".join(f"{number} {name}" for name, number in left.items()) + ".",
            {"left_behind": left, "episodes": _MANY},
            "Close and end everything when the episode is over, also after an error (`with`, `try/finally`).",
        )
    ]


async def _left_by_episodes(agent: OwnAgent, temporary: Path) -> dict[str, int]:
    """Return what _MANY episodes leave behind, if it is at least one for each of them."""
    before, kept_before = count_resources(), _sizes(agent)
    files_before, processes_before = _list_files(temporary), _count_episode_processes()
    for _ in range(_MANY):
        await agent.explore_together(agent.tasks[:1])
    await asyncio.sleep(SETTLE_SECONDS)
    kept = {f"global {name}": size - kept_before.get(name, size) for name, size in _sizes(agent).items()}
    grown: dict[str, int] = {
        **count_resources().more_than(before),
        **{name: size for name, size in kept.items() if size > 0},
        "temporary files": len(_list_files(temporary) - files_before),
        "processes with the key of an ended episode": _count_episode_processes() - processes_before,
    }
    return {name: number for name, number in grown.items() if number >= _MANY}


async def files(subject: Subject) -> Iterable[Finding]:
    """Episodes do not change files next to the recipe.

    A database or log that all episodes write is shared between them, also between training and evaluation, and grows. Copy
    the file to a temporary folder for each episode, or open it in memory.
    """
    agent = get_own_agent(subject)
    await explore_all(subject, needs="requests")
    before = _snapshot(subject.folder)
    await agent.explore_together(agent.tasks[:1])
    after = _snapshot(subject.folder)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if not changed:
        return []
    return [
        _finding(
            "agent.files",
            Severity.WARNING,
            f"an episode changes files of the recipe: {', '.join(changed[:5])}.",
            {"changed": changed[:20]},
            "Copy the file to a temporary folder for each episode, or open it in memory.",
        )
    ]


async def side_effects(subject: Subject) -> Iterable[Finding]:
    """The agent's own code reads no clock, draws no unseeded random numbers, and uses no network except the policy.

    An episode that is repeated or evaluated later would see another time, other numbers or other data. Derive both from the
    task, and record the answers of remote services. Only the code of an agent that is a function can be observed; timers
    that measure durations (`time.perf_counter`, `time.monotonic`) are ignored.
    """
    agent = get_own_agent(subject)
    assert agent.code is not None, "the rule needs the agent's code"
    await explore_all(subject, needs="requests")
    # Tools may run in threads, so everything is watched until the episodes are over, not only the steps of the function.
    with Observed(subject, SideEffects(agent.code, through_libraries=False)) as effects, effects.watching():
        for task in agent.tasks[:2]:
            await agent.explore_together([task])
    found = []
    for kind, problem, change in (
        ("clock", "reads the clock", "Take the time from the task."),
        ("randomness", "draws unseeded random numbers", "Use random.Random(task.seed)."),
    ):
        seen = effects.of(kind)  # type: ignore[arg-type]
        if seen:
            only_durations = kind == "clock" and all(one.what.startswith("time.time") for one in seen)
            severity = Severity.NOTE if only_durations else Severity.WARNING
            symptom = f"the agent {problem} at {Path(seen[0].place).name} ({seen[0].what})."
            evidence = {"seen": [one.as_json() for one in seen[:12]]}
            found.append(_finding("agent.side_effects", severity, symptom, evidence, change))
    outside = [one for one in effects.of("network") if not _is_local(one.what)]
    if outside:
        found.append(
            _finding(
                "agent.side_effects",
                Severity.WARNING,
                f"the agent uses the network at {Path(outside[0].place).name} ({outside[0].what}).",
                {"seen": [one.as_json() for one in outside[:12]]},
                "Record the answers of the service once, and replay them in training.",
            )
        )
    return found


async def bad_calls(subject: Subject) -> Iterable[Finding]:
    """The agent survives the calls that a model gets wrong: unknown tools, broken JSON, missing and additional arguments.

    A model in training makes all of these. An agent that raises ends the episode as `policy_error`, and the policy never
    sees what was wrong. Answer such a call with a tool message that states the error.
    """
    agent = get_own_agent(subject)
    episodes = await explore_all(subject)
    if _failed(*episodes) or not any(request.tools for one in episodes for request in one.requests):
        return []
    broken = {}
    for what in BAD_CALLS:
        with subject.timing.as_far_as_it_goes():
            episode = await agent.play(agent.tasks[0], make_bad_caller(what))
            if episode.is_failure_of_agent:
                broken[what] = episode.failure
    if not broken:
        return []
    return [
        _finding(
            "agent.bad_calls",
            Severity.WARNING,
            f"the agent fails after a call with {', '.join(broken)}: {_shorten(next(iter(broken.values())))}",
            {"failures": broken},
            "Catch the error, and send its text to the policy as the result of the call.",
        )
    ]


async def ends(subject: Subject) -> Iterable[Finding]:
    """The agent ends by itself when the policy repeats a call for ever.

    Otherwise only `agent.max_turns`, the context or the time limit ends the episode, and the episode costs that much. Limit
    the loop of the agent, or set `agent.max_turns`.
    """
    agent = get_own_agent(subject)
    await explore_all(subject)
    episode = await agent.play(agent.tasks[0], make_repeater())
    if episode.trajectory.outcome is not Outcome.MAX_TURNS or subject.config.agent.max_turns is not None:
        return []
    return [
        _finding(
            "agent.ends",
            Severity.NOTE,
            f"the agent still requests turns after the policy has repeated the same call {len(episode.requests)} times.",
            {"task": episode.task.id, "turns": len(episode.requests)},
            "Limit the turns in the agent's loop, or set `agent.max_turns`.",
        )
    ]


def _finding(rule: str, severity: Severity, symptom: str, evidence: dict[str, Json], change: str) -> Finding:
    return Finding(rule=rule, severity=severity, symptom=symptom, evidence=evidence, change=change, confirm=AGAIN)


def _failed(*episodes: OwnEpisode) -> bool:
    return any(one.is_failure_of_agent for one in episodes)


def _shorten(failure: str | None) -> str:
    """Return the first and the last line of a failure, since a program may end with a traceback."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()] or [""]
    return lines[0] if len(lines) == 1 else f"{lines[0][:120]} ... {lines[-1][:200]}"


def _sizes(agent: OwnAgent) -> dict[str, int]:
    return {} if agent.code is None else measure_sizes(list_globals(agent.code.modules()))


def _list_files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@contextmanager
def _private_temporary_folder() -> Iterator[Path]:
    """Let this process and its children create temporary files in a new folder, which other programs do not use."""
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before
            if variable is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = variable


def _snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of the files of a recipe, without caches of Python and run folders."""
    found = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if one not in ("__pycache__", "runs") and not one.startswith(".")]
        for name in names:
            path = Path(root, name)
            if not name.endswith((".pyc", "-journal", "-wal", "-shm")) and path.is_file():
                state = path.stat()
                found[str(path.relative_to(folder))] = (state.st_size, state.st_mtime_ns)
    return found


def _count_episode_processes() -> int:
    """Return the number of processes, other than this one, that were started with the address and key of an episode."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/environ") if Path("/proc").is_dir() else ():
        try:
            is_ours = b"OPENAI_BASE_URL=http://127.0.0.1:" in path.read_bytes() and path.parent.name != str(os.getpid())
        except OSError:
            continue
        found += is_ours
    return found


def _is_local(address: str) -> bool:
    return any(name in address for name in ("127.0.0.1", "localhost", "::1", "/"))
