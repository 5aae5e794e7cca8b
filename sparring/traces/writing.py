"""Write a recipe from the conversations of a log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from sparring.chat.messages import canonical_json
from sparring.errors import DataError, ServiceError, UsageError
from sparring.models.starters import Starter
from sparring.runtime.plugins import load_object
from sparring.traces.conversation import Conversation
from sparring.traces.personal import count_personal_data
from sparring.traces.reading import Traces
from sparring.traces.recipe import build_recipe
from sparring.traces.tasks import LoggedTask, Selection, select_tasks, writes_of
from sparring.traces.tools import LoggedTool, Replay, find_tools, plan_replay
from sparring.types import Json, Outcome, Trajectory

SCRATCH = "scratch"
"""The model that is built from scratch, in place of a pretrained one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What the user decided about the log and the recipe."""

    model: Starter | Literal["scratch"] | None = None
    """None for the default model of `sparring init`."""
    writing: Sequence[str] = ()
    reading: Sequence[str] = ()
    apart: Sequence[str] = ()
    """The arguments of which no value may be in two splits; empty for all arguments that identify what a task is about."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the recipe was made from, and what was left out."""

    traces: Traces
    tools: Mapping[str, LoggedTool]
    selection: Selection
    replay: Replay
    num_demonstrations: int
    num_by_scorer: int
    """The number of these that the scorer accepted, without a mark."""
    num_too_long: int = 0
    """The number of other good conversations of training tasks, which are longer than the model's positions (estimated)."""
    personal_data: Mapping[str, int]

    @property
    def left_out(self) -> dict[str, int]:
        """The number of conversations that are not used, by reason."""
        return {**self.traces.left_out, **self.selection.left_out}

    def as_json(self) -> dict[str, Json]:
        """Return the content of `traces.json`."""
        return {
            "format": 1,
            "rows": dict(self.traces.formats),
            "conversations": len(self.traces.conversations) + sum(self.traces.left_out.values()),
            "left_out": self.left_out,
            "unread": list(self.traces.unread),
            "has_marks": self.selection.has_marks,
            "likely_marks": dict(self.traces.likely_marks),
            "tasks": {name: len(members) for name, members in self.selection.splits.items()},
            "shared_entities": sorted(self.selection.shared_entities)[:100],
            "closed_arguments": list(self.selection.closed_arguments),
            "contradicted_tasks": self.selection.num_contradicted,
            "calls": {
                "all": self.replay.num_calls, "answered_in_every_task": self.replay.num_shared,
                "answered_in_own_task": self.replay.num_own, "of_writing_tools": self.replay.num_writes,
                "share_answered": self.replay.share,
            },
            "tools": {name: {"calls": one.num_calls, **_decision(one)} for name, one in self.tools.items()},
            "demonstrations": self.num_demonstrations,
            "demonstrations_by_scorer": self.num_by_scorer,
            "too_long_for_a_demonstration": self.num_too_long,
            "personal_data": dict(self.personal_data),
        }  # fmt: skip


def write_recipe(traces: Traces, folder: Path, decisions: Decisions) -> Written:
    """Write a recipe into a new folder.

    Raises DataError if the log has no usable conversation, ServiceError without the library for tool schemas, and
    UsageError if a name of a tool or argument is unknown or the folder cannot be written.
    """
    traces = _with_usable_schemas(traces)
    tools = find_tools(traces.conversations, writing=decisions.writing, reading=decisions.reading)
    for name in (*decisions.writing, *decisions.reading):
        if name not in tools:
            raise UsageError(f"no tool of the log is named {name!r}; its tools are {', '.join(tools) or 'none'}.")
    selection = select_tasks(traces.conversations, tools, apart=decisions.apart, seed=decisions.seed)
    if not selection.splits["train"]:
        reasons = "".join(
            f"\n  {count}: {reason}" for reason, count in {**traces.left_out, **selection.left_out}.items()
        )
        reasons += (
            f"\n  {len(traces.unread)} rows cannot be read; the first: {traces.unread[0]}" if traces.unread else ""
        )
        raise DataError(f"the log has no conversation to make a training task from.{reasons or ' It is empty.'}")
    used = [one for task in selection.tasks for one in (*task.good, *task.unmarked)]
    written = Written(
        traces=traces, tools=tools, selection=selection, replay=plan_replay(used, tools), num_demonstrations=0,
        num_by_scorer=0, personal_data=count_personal_data(used),
    )  # fmt: skip
    try:
        return _write(folder, written, decisions)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error}; specify a folder that can be created.") from error


def _write(folder: Path, written: Written, decisions: Decisions) -> Written:
    folder.mkdir(parents=True, exist_ok=True)
    is_scratch = decisions.model == SCRATCH
    for name in ("reward.py", "scorer.py", "README.md"):
        _write_new(folder / name, _template(name))
    _write_new(folder / "tools.json", json.dumps([one.as_json() for one in written.tools.values()], indent=1) + "\n")
    shared = [{"tool": call.tool, "arguments": call.arguments, "result": call.result} for call in written.replay.shared]
    if shared:
        _write_lines(folder / "fixtures" / "calls.jsonl", shared)
    _write_new(folder / "environment.py", _environment(written.tools, bool(shared), is_scratch))
    for name, members in written.selection.splits.items():
        rows = [{"id": one.task.id, "prompt": list(one.task.messages), **one.task.fields} for one in members]
        if rows:
            _write_lines(folder / "tasks" / f"{name}.jsonl", rows)
    train = written.selection.splits["train"]
    accepted = _accepted(folder, train, written.tools)
    demonstrations = [one for task in train for one in task.good] + accepted
    recipe = build_recipe(written.selection, demonstrations, list(written.tools.values()), decisions.model)
    kept = recipe.demonstrations
    _write_lines(folder / "demonstrations.jsonl", [{"messages": list(one.messages)} for one in kept])
    written = replace(
        written, num_demonstrations=len(kept), num_by_scorer=sum(one in kept for one in accepted),
        num_too_long=len(demonstrations) - len(kept),
    )  # fmt: skip
    _write_new(folder / "recipe.toml", recipe.text)
    if recipe.varies_identifiers:
        _write_new(folder / "demonstrations.py", _template("demonstrations.py"))
    if is_scratch:
        model = _template("model_of_few.py" if recipe.varies_identifiers else "model.py")
        _write_new(folder / "model.py", model.replace("max_positions=512", f"max_positions={recipe.positions}"))
    _write_new(folder / "traces.json", json.dumps(written.as_json(), indent=1, ensure_ascii=False) + "\n")
    return written


def _accepted(folder: Path, tasks: Iterable[LoggedTask], tools: Mapping[str, LoggedTool]) -> list[Conversation]:
    """Return the unmarked conversations that the recipe's scorer accepts."""
    found = [(task, one) for task in tasks for one in task.unmarked]
    if not found:
        return []
    scorer = load_object("scorer:scorer", folder=folder)
    return [one for task, one in found if scorer(_as_episode(task, one, tools)) >= 1.0]


def _as_episode(task: LoggedTask, one: Conversation, tools: Mapping[str, LoggedTool]) -> Trajectory:
    """Return a logged conversation as the episode that its scorer grades."""
    return Trajectory(
        id=one.where, task=task.task, attempt=0, turns=(), messages=one.messages, outcome=Outcome.FINISHED, reward=None,
        score=None, final_state={"writes": writes_of(one, tools)},
    )  # fmt: skip


def _environment(tools: Mapping[str, LoggedTool], has_shared: bool, is_scratch: bool) -> str:
    text = _template("environment.py")
    if not has_shared:
        text = "".join(line for line in text.splitlines(keepends=True) if "Fixtures" not in line)
    if is_scratch:
        text = text.replace('describe_tools = "schema"  # "prompt": the', 'describe_tools = "prompt"  # the')
    for tool in tools.values():
        if tool.writes:
            # The names come from the log, and must not become code.
            names = tool.schema["function"]["parameters"].get("properties", {})
            arguments = ", ".join(name for name in names if name.isidentifier())
            name = tool.name if tool.name.isidentifier() else "..."
            text += (
                f"\n    # TODO: {_on_one_line(tool.name)} looks as if it changes something: {_on_one_line(tool.why)}.\n"
                "    # A call succeeds only if the log of the task has it. Define the method to run it on a back end that each\n"
                "    # episode has for itself.\n"
                f"    # async def {name}(self, {arguments}): ...\n"
            )
    return text


def _on_one_line(text: str) -> str:
    """Return a text of the log as a part of a comment."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:200]


def _decision(tool: LoggedTool) -> dict[str, Json]:
    return {"writes": tool.writes, "why": tool.why, "inferred": tool.is_inferred}


def _with_usable_schemas(traces: Traces) -> Traces:
    """Return the traces without the conversations that list a tool whose schema cannot be used. Raises ServiceError
    without the library for schemas."""
    try:
        from sparring.environments.schema_tools import SchemaTool
    except ImportError as error:
        raise ServiceError(
            "a recipe from traces uses the tools' JSON schemas, for which jsonschema is missing; install it with "
            "`pip install 'sparring[schemas]'`."
        ) from error
    problems: dict[str, str | None] = {}
    kept, unread = [], list(traces.unread)
    for one in traces.conversations:
        for function in (tool["function"] for tool in one.tools):
            key = canonical_json(function)
            if key not in problems:
                try:
                    SchemaTool(function["name"], "", function["parameters"])
                    problems[key] = None
                except (UsageError, RecursionError) as error:
                    problems[key] = str(error)
            if problems[key] is not None:
                unread.append(f"{one.where}: {problems[key]}")
                break
        else:
            kept.append(one)
    return replace(traces, conversations=tuple(kept), unread=tuple(unread))


def _template(name: str) -> str:
    return (files("sparring") / "templates" / "traces" / name).read_text("utf-8")


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    _write_new(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))


def _write_new(path: Path, text: str) -> None:
    """Write a file that must not exist."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
