"""The text that a reviewing model reads: the recipe, the user's source code, the tools, the tasks and some episodes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from sparring.agents.scripted import saying
from sparring.checks.evidence.legal_calls import make_explorer
from sparring.checks.evidence.subject import Subject, write_transcript
from sparring.checks.running.time_budget import UndecidedError
from sparring.environments import answer
from sparring.types import Json, Task, Trajectory

NUM_SHOWN = 6
"""The number of tasks that are shown with their prompts and hidden fields."""
NUM_FIELDS = 12
"""The number of additional tasks whose hidden fields are shown."""
NUM_PLAYED = 2
"""The number of tasks in which episodes of scripted policies are shown."""
MOST_CHARACTERS = {"source": 80_000, "tasks": 30_000, "episodes": 30_000}
"""The maximum length of each part of the material, in characters. A fifth of this number is about the number of
tokens."""
_LONGEST_LINE = 4_000


async def describe_recipe(subject: Subject) -> str:
    """Return the material for a review of a recipe. Runs two episodes in each of NUM_PLAYED tasks."""
    parts = {
        "The recipe": _read(subject.recipe),
        "Source code, with line numbers": _cut("\n\n".join(_list_sources(subject)), MOST_CHARACTERS["source"]),
        "Parts of the library that the source uses": "\n\n".join(_list_library_parts(subject)),
        "Tools, as the policy sees them": "\n".join(_dump(schema) for schema in subject.tool_schemas),
        "Tasks": _cut("\n\n".join(await _list_tasks(subject)), MOST_CHARACTERS["tasks"]),
        "Episodes of scripted policies": _cut("\n\n".join(await _list_episodes(subject)), MOST_CHARACTERS["episodes"]),
    }
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items() if text)


def show_episode(trajectory: Trajectory) -> str:
    """Return an episode as text: its messages, how it ended, its grades and the final state."""
    lines = [f"{role}: {_shorten(text)}" for role, text in write_transcript(trajectory.messages)]
    reward = None if trajectory.reward is None else trajectory.reward.total
    components = {} if trajectory.reward is None else dict(trajectory.reward.components)
    grades = f"outcome {trajectory.outcome.value}, reward {reward}, components {components}, score {trajectory.score}"
    state = "" if trajectory.final_state is None else f"\nfinal state: {_shorten(_dump(trajectory.final_state))}"
    return "\n".join([*lines, f"({grades}){state}"])


def _list_sources(subject: Subject) -> Iterable[str]:
    for module in _own_modules(subject):
        path = Path(str(module.__file__))
        name = path.name if not path.is_relative_to(subject.folder) else path.relative_to(subject.folder).as_posix()
        lines = _read(path).splitlines()
        yield f"### {name}\n" + "\n".join(f"{number:4} {line}" for number, line in enumerate(lines, start=1))


def _own_modules(subject: Subject) -> Sequence[ModuleType]:
    """Return the environment's modules and all loaded modules from the recipe's folder."""
    modules = [one for one in subject.own_code.modules() if getattr(one, "__file__", None)]
    return sorted(modules, key=lambda module: str(module.__file__))


def _list_library_parts(subject: Subject) -> Iterable[str]:
    """Yield the signatures and docstrings of Sparring's functions and classes that the user's modules import."""
    seen: set[int] = set()
    for module in _own_modules(subject):
        for name, value in vars(module).items():
            home = getattr(value, "__module__", None) or ""
            is_described = inspect.isclass(value) or inspect.isfunction(value)
            if is_described and home.startswith("sparring.") and id(value) not in seen:
                seen.add(id(value))
                heading = f"class {name}" if inspect.isclass(value) else f"def {name}{inspect.signature(value)}"
                yield f"{heading} ({home})\n{inspect.getdoc(value) or ''}"


async def _list_tasks(subject: Subject) -> list[str]:
    splits = {split: len(getattr(subject.tasks, split)) for split in ("train", "validation", "held_out")}
    shown = [f"Tasks by split: {splits}. The policy never sees the hidden fields."]
    sample = subject.sample[:NUM_SHOWN]
    for task in sample:
        lines = [f"{role}: {text}" for role, text in write_transcript(await subject.opening(task))]
        shown.append("\n".join([f"### Task {task.id}", *lines, f"hidden fields: {_fields(task)}"]))
    names = {task.id for task in sample}
    others = [task for task in subject.looked_at if task.id not in names][:NUM_FIELDS]
    shown += [f"### Task {task.id}\n{_last_text(task)}hidden fields: {_fields(task)}" for task in others]
    return shown


async def _list_episodes(subject: Subject) -> list[str]:
    shown = []
    for task in subject.sample[:NUM_PLAYED]:
        for policy in (await make_explorer(subject, task), saying("says nothing", (answer(""),))):
            try:
                played = await subject.run_episode(task, policy)
            except UndecidedError as error:
                shown.append(f"### {policy.name}, task {task.id}\nfailed: {error}")
                continue
            shown.append(f"### {policy.name}, task {task.id}\n{show_episode(played)}")
    return shown


def _last_text(task: Task) -> str:
    texts = [str(message.get("content") or "") for message in task.messages if message.get("role") == "user"]
    return f"user: {_shorten(texts[-1])}\n" if texts else ""


def _fields(task: Task) -> str:
    return _shorten(_dump(task.fields))


def _dump(value: Json | Mapping[str, Json]) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]} ... ({len(text)} characters)"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}\n(the rest is left out: {len(text)} characters in all)"


def _read(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")
