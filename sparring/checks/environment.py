"""Is the environment a world that can be trusted: the same twice, apart from its neighbours, closed and clean after use?"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from sparring.checks.calls import Call, answers, changes, expert_calls, explorer, likely_calls, players, stranger
from sparring.checks.registry import check
from sparring.checks.residue import globals_of, holds, own_modules, residue, size_of
from sparring.checks.scripted import Asked, ScriptedPolicy
from sparring.checks.sightings import Sighting, Sightings
from sparring.checks.subject import Subject, UndecidedError, transcript
from sparring.checks.twin import fingerprint
from sparring.environments import Environment, StatefulEnvironment, opened, tool_call
from sparring.environments.base import CLOSE_SECONDS
from sparring.errors import InfrastructureError
from sparring.findings import Finding, Severity
from sparring.types import Json, Message, Task, Trajectory

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
NUM_LEAK_EPISODES = 4
TWIN_SECONDS = 20.0


@check("environment.plays", needs=("environment",))
async def plays(subject: Subject) -> Iterable[Finding]:
    """Episodes can be played to their end.

    The scripted expert, where there is one, and a policy that calls every tool once play a sample of the training tasks. A
    `reset` or `close` that raises, a call that does not return or ends the process makes every other check worthless, and
    each such episode would be lost in training. Mend it first.
    """
    for task in subject.sample:
        for policy in await players(subject, task):
            await subject.play(task, policy, judged=False)
    return ()


@check("environment.same_twice", needs=("environment",))
async def same_twice(subject: Subject) -> Iterable[Finding]:
    """The same task and the same actions give the same conversation, twice in one process.

    A reward can only be compared within a group when its members met the same world. Draw from `random.Random(task.seed)`,
    keep nothing between episodes, sort what comes out of sets and directories.
    """
    for task in subject.sample:
        for policy in await players(subject, task):
            first = await subject.play(task, policy, judged=False)
            second = await subject.play(task, policy, repeat=1, judged=False)
            difference = _first_difference(transcript(first.messages), transcript(second.messages))
            if difference is not None:
                return [
                    Finding(
                        rule="environment.same_twice",
                        severity=Severity.ERROR,
                        symptom=f"task {task.id} played twice with the same actions gives two conversations.",
                        evidence={"task": task.id, "policy": policy.name, **difference},
                        change="Draw whatever is random from a generator seeded by the task, and keep nothing between "
                        "episodes; `environment.randomness` and `environment.clock` name lines.",
                        confirm=AGAIN,
                    )
                ]
    return ()


@check("environment.same_elsewhere", needs=("environment",), seconds=3 * TWIN_SECONDS + 5)
async def same_elsewhere(subject: Subject) -> Iterable[Finding]:
    """Tasks, tools and episodes are the same in another process, in another order, with another hash seed, a year later by
    the clock.

    A run that is resumed, a replay and an evaluation next month must meet the same world. Differences come from the order
    of sets, from dates in results, from randomness at import, from what is kept of the episodes before. Take the time of a
    task from the task, sort, and keep nothing.
    """
    episodes = await _episodes(subject)
    later = await _later(subject)
    difference = _difference_elsewhere(subject, episodes, later)
    if difference is None:
        return ()
    when, change = "a year later by the clock", "Take dates and times from the task; `environment.clock` names lines."
    backwards = await _elsewhere(subject, episodes, shifts_clock=False, backwards=True)
    if _difference_elsewhere(subject, episodes, backwards) is not None:
        forwards = await _elsewhere(subject, episodes, shifts_clock=False, backwards=False)
        if _difference_elsewhere(subject, episodes, forwards) is None:
            when, change = (
                "when episodes are played in another order",
                "Keep nothing between episodes: no cache, no counter.",
            )
        else:
            when = "in another process"
            change = "Sort what comes out of sets and directories, and seed what is drawn at import."
    return [
        Finding(
            rule="environment.same_elsewhere",
            severity=Severity.ERROR,
            symptom=f"the same recipe gives {difference.pop('what')} {when}.",
            evidence=difference,
            change=change,
            confirm=AGAIN,
        )
    ]


@check("environment.order", needs=("environment", "expert"))
async def order(subject: Subject) -> Iterable[Finding]:
    """Tools that read give the same answers in another order, and when asked again.

    The expert's calls are made backwards, and each twice, in fresh environments. An answer that depends on what was asked
    before is a state: then it belongs to a `StatefulEnvironment`, which this rule leaves alone, or to tools whose names say
    that they change something.
    """
    assert subject.environment_class is not None, "the rule needs an environment"
    if issubclass(subject.environment_class, StatefulEnvironment):
        return ()
    found: dict[str, dict[str, Json]] = {}
    for task in subject.sample:
        calls = await expert_calls(subject, task)
        if not calls or any(changes(one.tool) for one in calls):
            continue
        forth = await answers(subject, task, calls)
        back = (await answers(subject, task, calls[::-1]))[::-1]
        twice = (await answers(subject, task, [one for one in calls for _ in range(2)]))[1::2]
        for call, first, *others in zip(calls, forth, back, twice, strict=True):
            for how, other in zip(("backwards", "asked again"), others, strict=True):
                if first.content != other.content and call.tool not in found:
                    found[call.tool] = {
                        "task": task.id, "call": str(call), "in_order": first.content, how.replace(" ", "_"): other.content,
                    }  # fmt: skip
    return [
        Finding(
            rule="environment.order",
            severity=Severity.WARNING,
            symptom=f"the answer of {name} depends on what was called before, although its name says that it reads.",
            evidence=evidence,
            change="Answer from the task alone; or, if it is meant, name the tool for what it changes.",
            confirm=AGAIN,
        )
        for name, evidence in found.items()
    ]


@check("environment.twins", needs=("environment",))
async def twins(subject: Subject) -> Iterable[Finding]:
    """Two episodes played side by side give what each gives alone, and nothing of one is seen in the other.

    Episodes run concurrently, so whatever they share leaks: class attributes, module globals, files and database rows under
    fixed names. A marked text is given to the tools of one episode, and looked for in the other's conversation and in what
    the modules keep afterwards. Keep state on `self`, made in `reset`.
    """
    findings: list[Finding] = []
    pairs = list(zip(subject.sample, [*subject.sample[1:], subject.sample[0]], strict=True))
    for one, other in pairs[:4]:
        for policies in zip(await players(subject, one), await players(subject, other), strict=True):
            alone = [
                await subject.play(task, policy, judged=False)
                for task, policy in zip((one, other), policies, strict=True)
            ]
            together = await asyncio.gather(
                *(subject.episode(task, policy) for task, policy in zip((one, other), policies, strict=True))
            )
            for first, second in zip(alone, together, strict=True):
                difference = _first_difference(transcript(first.messages), transcript(second.messages))
                if difference is not None and not findings:
                    findings.append(_shared(
                        f"task {first.task.id} goes otherwise while task {(other if first.task is one else one).id} is played "
                        "beside it.",
                        {"task": first.task.id, **difference},
                    ))  # fmt: skip
    findings += await _canaries(subject, *pairs[0])
    return findings


@check("environment.leaks", needs=("environment",))
async def leaks(subject: Subject) -> Iterable[Finding]:
    """Episodes leave nothing behind, however they end: finished, cut short by an error, timed out, or after calls that fail.

    Threads, processes, file handles, sqlite connections, asyncio tasks, files, and what modules keep are counted before and
    after a few episodes. What a thousand episodes leave ends a run. Release it in `close`, which is always called; a
    `StatefulEnvironment` closes what it registered.
    """
    findings: list[Finding] = []
    task = subject.sample[0]
    player, unknown = (await players(subject, task))[0], await stranger(subject, task)
    modules = _modules(subject)
    for how, play, policy in (
        ("finish", _finished, player),
        ("fail", _crashed, player),
        ("time out", _timed_out, player),
        ("ask tools for what is not there", _finished, unknown),
    ):
        await play(subject, task, policy)  # what is made once is no leak
        before, kept = residue(), {name: size_of(value) for name, value in globals_of(modules).items()}
        with _Sighted(subject) as sightings:
            for _ in range(NUM_LEAK_EPISODES):
                await play(subject, task, policy)
        left: dict[str, Json] = {**residue().more_than(before)}
        files = [one for one in sightings.of("written") if _is_left(one.what)]
        if files:
            left["files"] = [one.as_json() for one in files[:8]]
        grown = {
            name: [kept[name], size_of(value)]
            for name, value in globals_of(modules).items()
            if name in kept and size_of(value) >= kept[name] + NUM_LEAK_EPISODES
        }
        if grown:
            left["globals (objects before, after)"] = grown
        if left:
            is_error = any(isinstance(count, int) and count >= NUM_LEAK_EPISODES for count in left.values()) or grown
            many_files = len({one.what for one in files}) >= NUM_LEAK_EPISODES
            findings.append(
                Finding(
                    rule="environment.leaks",
                    severity=Severity.ERROR if is_error or many_files else Severity.WARNING,
                    symptom=f"{NUM_LEAK_EPISODES} episodes that {how} leave {', '.join(left)} behind.",
                    evidence={"task": task.id, "episodes": NUM_LEAK_EPISODES, **left},
                    change="Release it in `close`, and make nothing that outlives the object.",
                    confirm=AGAIN,
                )
            )
            break  # the others mostly leave the same
    return findings


@check("environment.close", needs=("environment",))
async def close(subject: Subject) -> Iterable[Finding]:
    """`close` works on every path: after a full episode, after one that was cut short, and when `reset` failed.

    `close` is always called, also for an object whose `reset` never ran or stopped half-way: attributes that only `reset`
    makes may not be there. Set them in the class or in `__init__`.
    """
    task = subject.sample[0]
    policy = (await players(subject, task))[0]
    found = []
    for how, play in (("`reset` never ran", _unopened), ("the episode failed", _crashed), ("it timed out", _timed_out)):
        try:
            await play(subject, task, policy)
        except (InfrastructureError, UndecidedError) as error:
            found.append({"when": how, "error": str(error)})
    if not found:
        return ()
    return [
        Finding(
            rule="environment.close",
            severity=Severity.ERROR,
            symptom=f"`close` fails when {found[0]['when']}.",
            evidence={"task": task.id, "failures": found},
            change="Have `close` release what there is, and no more: it may be called before `reset` was done.",
            confirm=AGAIN,
        )
    ]


@check("environment.clock", needs=("environment",))
async def clock(subject: Subject) -> Iterable[Finding]:
    """The environment does not ask what time it is.

    An episode that is replayed, resumed or evaluated later meets another time. Put the time into the task, or use the clock
    of a `StatefulEnvironment`, which starts at a time that follows from the seed. Timers that only measure are fine.
    """
    return _seen(
        "environment.clock", (await _sightings(subject)).of("clock"), Severity.WARNING,
        "the environment reads the wall clock at {}.",
        "Take the time from the task, or from the clock of a StatefulEnvironment.",
    )  # fmt: skip


@check("environment.randomness", needs=("environment",))
async def randomness(subject: Subject) -> Iterable[Finding]:
    """The environment throws no dice but its own seeded ones.

    The process-wide generators of `random` and `numpy.random`, unseeded ones, `uuid4`, `secrets` and `os.urandom` give every
    episode another world. Use `random.Random(task.seed)`, or `state.rng` and `state.new_id` of a `StatefulEnvironment`.
    """
    return _seen(
        "environment.randomness", (await _sightings(subject)).of("randomness"), Severity.WARNING,
        "the environment draws from an unseeded or process-wide source at {}.",
        "Draw from random.Random(task.seed), made in `reset`.",
    )  # fmt: skip


@check("environment.network", needs=("environment",))
async def network(subject: Subject) -> Iterable[Finding]:
    """No tool reaches for the network.

    A step plays hundreds of episodes: live systems would be hit by each, and their data changes under the training. Record
    the answers once and replay them (`Fixtures.record`), or run a service of your own on this machine, which is a warning only.
    """
    sightings = (await _sightings(subject)).of("network")
    outside = [one for one in sightings if not any(name in one.what for name in ("127.0.0.1", "localhost", "::1", "/"))]
    change = "Record the answers once (Fixtures.record) and replay them."
    symptom = "the environment reaches for the network at {}."
    if outside:
        return _seen("environment.network", outside, Severity.ERROR, symptom, change)
    return _seen("environment.network", sightings, Severity.WARNING, symptom, change)


@check("environment.tool_order", needs=("environment",))
async def tool_order(subject: Subject) -> Iterable[Finding]:
    """The tools are offered in the same order every time.

    The list is part of every prompt. Another order is another prompt for the model, and it ends the reuse of what was
    computed for it. Define tools as methods; if `offered_tools` is overridden, have it return a sorted list.
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
            symptom="the tools that go to the model differ from one time to the next.",
            evidence={"in_this_process": orders[:3], "in_another": orders[3]},
            change="Return the tools in one order, with the same text: sort them by name.",
            confirm=AGAIN,
        )
    ]


def _first_difference(first: Sequence[tuple[str, str]], second: Sequence[Sequence[str]]) -> dict[str, Json] | None:
    """Where two conversations part, and what each says there."""
    for index in range(max(len(first), len(second))):
        one = list(first[index]) if index < len(first) else None
        other = list(second[index]) if index < len(second) else None
        if one != other:
            return {"message": index, "first": _around(one, other), "second": _around(other, one)}
    return None


def _around(line: Sequence[str] | None, other: Sequence[str] | None) -> Json:
    """A message with its text cut to where it differs from another."""
    if line is None:
        return "(no such message)"
    role, text = line
    differs = (
        index for index, (a, b) in enumerate(zip(text, "" if other is None else other[1], strict=False)) if a != b
    )
    same = next(differs, 0)
    begin = max(0, same - 40)
    cut = text[begin : same + 120]
    return f"{role}: {'...' if begin else ''}{cut}{'...' if same + 120 < len(text) else ''}"


async def _episodes(subject: Subject) -> list[tuple[Task, str, Trajectory]]:
    """What the sampled tasks look like here: (task, policy, trajectory)."""
    return [
        (task, policy.name, await subject.play(task, policy, judged=False))
        for task in subject.sample
        for policy in await players(subject, task)
    ]


async def _later(subject: Subject) -> dict[str, Json]:
    """What another process says a year later; it is asked once."""
    if "later" not in subject.shared:
        subject.shared["later"] = await _elsewhere(subject, await _episodes(subject), shifts_clock=True, backwards=True)
    return subject.shared["later"]


async def _elsewhere(
    subject: Subject, episodes: Sequence[tuple[Task, str, Trajectory]], *, shifts_clock: bool, backwards: bool
) -> dict[str, Json]:
    """What a process of its own says of these episodes. Raises UndecidedError when it does not."""
    request = {
        "recipe": str(subject.recipe.resolve()),
        "overrides": list(subject.overrides),
        "shifts_clock": shifts_clock,
        "backwards": backwards,
        "episodes": [
            {"task": task.id, "policy": name, "script": [turn.message for turn in played.turns]}
            for task, name, played in episodes
        ],
    }
    here = os.environ.get("PYTHONHASHSEED", "")
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "4321" if here != "4321" else "1234",
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    with tempfile.TemporaryFile() as errors:
        # Its own group: what it starts ends with it, and may hold its pipe open.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "sparring.checks.twin", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=errors, env=environment, start_new_session=True, limit=1 << 26,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        limit = TWIN_SECONDS * subject.patience
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(limit):
                line = await process.stdout.readline()
        except TimeoutError:
            raise UndecidedError(f"another process had not played the episodes after {limit:g} s") from None
        except asyncio.CancelledError:
            process.send_signal(signal.SIGINT)  # it closes the environment of the episode under way
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), CLOSE_SECONDS)
            raise
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if not line:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
            raise UndecidedError(f"another process could not play the episodes, and said: {last[0]}")
    return json.loads(line)


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
        difference = _first_difference(transcript(played.messages), lines)
        if difference is not None:
            return {"what": "another conversation", "task": task.id, "policy": name, **difference}
    return None


def _shared(symptom: str, evidence: Mapping[str, Json]) -> Finding:
    return Finding(
        rule="environment.twins",
        severity=Severity.ERROR,
        symptom=symptom,
        evidence=evidence,
        change="Keep what belongs to an episode on `self`, made in `reset`, under names of its own.",
        confirm=AGAIN,
    )


async def _canaries(subject: Subject, one: Task, other: Task) -> list[Finding]:
    """Mark what an episode gives its tools, and look for the mark where it must not be."""
    mark = f"canary{subject.rng('canary').randrange(10**6)}"
    marked = await _marked(subject, one, mark)
    neighbour = await explorer(subject, other)
    _, beside = await asyncio.gather(subject.episode(one, marked), subject.episode(other, neighbour))
    for index, (role, text) in enumerate(transcript(beside.messages)):
        if mark in text and role != "assistant":
            said = {"task": one.id, "seen_in_task": other.id, "message": index, "text": text[:300], "mark": mark}
            return [_shared(f"what was said in task {one.id} is seen in task {other.id}.", said)]
    modules = _modules(subject)
    keeping = [name for name, value in globals_of(modules).items() if holds(value, mark)]
    if keeping:
        said = {"task": one.id, "kept_in": keeping, "mark": mark}
        finding = _shared(f"what was said in task {one.id} is kept in {keeping[0]} after its end.", said)
        # A cache of the standard library gives everybody the same; it only grows.
        is_cache = all(hasattr(globals_of(modules)[name], "cache_info") for name in keeping)
        return [replace(finding, severity=Severity.WARNING) if is_cache else finding]
    return []


async def _marked(subject: Subject, task: Task, mark: str) -> ScriptedPolicy:
    """Calls every tool with a mark in every text, and then once more as the expert would."""
    calls = []
    for tool in subject.tools.values():
        likely = (await likely_calls(subject, task, tool))[0]
        calls.append(Call(tool.name, {
            name: mark if tool.hints[name] is str else value for name, value in likely.arguments.items()
        }))  # fmt: skip
    said = [tool_call(one.tool, **one.arguments) for one in [*calls, *await expert_calls(subject, task)]]

    def act(asked: Asked) -> Message:
        return said[asked.turn] if asked.turn < len(said) else {"role": "assistant", "content": mark}

    return ScriptedPolicy("marked", act)


def _modules(subject: Subject) -> tuple[ModuleType, ...]:
    cls = subject.environment_class
    assert cls is not None, "the rule needs an environment"
    ours = Environment.__module__.rpartition(".")[0]
    classes = [one.__module__ for one in cls.__mro__ if one is not object]
    # Our own patterns are no recipe's code; domains that we ship are.
    own = [name for name in classes if not name.startswith(ours) or name.startswith(f"{ours}.suites")]
    return own_modules(subject.folder, *own)


async def _finished(subject: Subject, task: Task, policy: ScriptedPolicy) -> None:
    await subject.episode(task, policy)


async def _crashed(subject: Subject, task: Task, policy: ScriptedPolicy) -> None:
    """An episode whose policy fails half-way."""
    last = len((await subject.play(task, policy, judged=False)).turns) // 2

    async def act(asked: Asked) -> Message:
        if asked.turn >= last:
            raise _CutShort
        said = policy.act(asked)
        return await said if isinstance(said, Awaitable) else said

    await _cut_short(subject, task, ScriptedPolicy("crashing", act))


async def _timed_out(subject: Subject, task: Task, policy: ScriptedPolicy) -> None:
    """An episode that is cancelled while its policy thinks, half-way."""
    last = len((await subject.play(task, policy, judged=False)).turns) // 2
    is_waiting = asyncio.Event()

    async def act(asked: Asked) -> Message:
        if asked.turn >= last:
            is_waiting.set()
            await asyncio.Event().wait()
        said = policy.act(asked)
        return await said if isinstance(said, Awaitable) else said

    playing = asyncio.ensure_future(subject.episode(task, ScriptedPolicy("waiting", act)))
    waiting = asyncio.ensure_future(is_waiting.wait())
    await asyncio.wait([playing, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=5)
    waiting.cancel()
    playing.cancel()
    with suppress(asyncio.CancelledError):
        await playing


async def _unopened(subject: Subject, task: Task, policy: ScriptedPolicy) -> None:
    """An environment that is closed before it was reset."""
    async with opened(subject.make_environment(), task):
        pass


async def _cut_short(subject: Subject, task: Task, policy: ScriptedPolicy) -> None:
    try:
        await subject.episode(task, policy)
    except UndecidedError as error:
        if not isinstance(error.__cause__, _CutShort):
            raise


class _CutShort(Exception):
    """What a failing policy raises."""


class _Sighted:
    """Watches what the environment's own code does in every call within the block."""

    def __init__(self, subject: Subject) -> None:
        files = [str(subject.folder.resolve()) + os.sep]
        files += [str(module.__file__) for module in _modules(subject) if getattr(module, "__file__", None)]
        self._subject = subject
        self._sightings = Sightings(tuple(files))

    def __enter__(self) -> Sightings:
        self._before, self._subject.watch.observe = self._subject.watch.observe, self._sightings.watching
        return self._sightings

    def __exit__(self, *_: object) -> None:
        self._subject.watch.observe = self._before
        self._sightings.close()


async def _sightings(subject: Subject) -> Sightings:
    """What was seen while the sampled tasks were played; played once for all rules that ask."""
    if "sightings" not in subject.shared:
        with _Sighted(subject) as sightings:
            for task in subject.sample:
                for policy in await players(subject, task):
                    await subject.episode(task, policy)
        subject.shared["sightings"] = sightings
    return subject.shared["sightings"]


def _seen(rule: str, sightings: Sequence[Sighting], severity: Severity, symptom: str, change: str) -> list[Finding]:
    if not sightings:
        return []
    return [
        Finding(
            rule=rule,
            severity=severity,
            symptom=symptom.format(f"{Path(sightings[0].place).name} ({sightings[0].what})"),
            evidence={"seen": [one.as_json() for one in sightings[:12]]},
            change=change,
            confirm=AGAIN,
        )
    ]


def _is_left(path: str) -> bool:
    """Whether something is still there that an episode made; devices and compiled code are nobody's leak."""
    return os.path.exists(path) and not path.startswith("/dev/") and "__pycache__" not in path
