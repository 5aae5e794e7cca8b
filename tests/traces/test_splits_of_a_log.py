"""Which conversations of a log are one task, and which values of arguments keep tasks in one split."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sparring.checks.running.run import Options, check_recipe
from sparring.cli import app
from sparring.errors import UsageError
from sparring.traces import Marking, read_traces
from sparring.traces.tasks import Selection, select_tasks
from sparring.traces.tools import find_tools

ALERTS = ("disk", "cert", "load", "dns", "mail", "cache")
ACTIONS = ("reboot", "resize", "renew", "drain")
Row = dict[str, Any]


def call(tool: str, result: str, **arguments: str) -> list[Row]:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    calls = [{"id": tool, "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": tool, "content": result},
    ]


def incidents(num: int, opening: str = "{} is down") -> Iterator[Row]:
    """Yield conversations about one host each, whose alerts and actions are few. Without a host in the opening, the agent
    asks for it."""
    for number in range(num):
        host, alert, action = f"web-{number:03}", ALERTS[number % 6], ACTIONS[number % 4]
        yield {
            "messages": [
                {"role": "user", "content": opening.format(host)},
                *(
                    []
                    if "{}" in opening
                    else [{"role": "assistant", "content": "which host?"}, {"role": "user", "content": host}]
                ),
                *call("get_host", f"alert {alert}", host=host),
                *call("search_kb", action, alert=alert),
                *call("run_action", "started", host=host, action=action),
                {"role": "assistant", "content": f"{action} started"},
            ]
        }


def write(folder: Path, rows: Iterator[Row]) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def select(log: Path, *apart: str) -> Selection:
    talks = read_traces(log, Marking()).conversations
    return select_tasks(talks, find_tools(talks), apart=apart, seed=0)


def init(log: Path, folder: Path, *options: str) -> Result:
    arguments = ["init", str(folder), "--from-traces", str(log), "--model", "scratch", *options]
    return CliRunner().invoke(app, arguments, terminal_width=200)


def alerts(selection: Selection) -> dict[str, set[str]]:
    found = {
        name: Counter(one.example.calls[1].arguments["alert"] for one in members)
        for name, members in selection.splits.items()
    }
    return {name: {str(alert) for alert in counts} for name, counts in found.items()}


def test_every_split_has_the_values_of_arguments_with_few_values_and_hosts_are_apart(tmp_path: Path) -> None:
    selection = select(write(tmp_path, incidents(400)))
    assert {name: len(members) for name, members in selection.splits.items()} == {
        "train": 280,
        "held_out": 80,
        "validation": 40,
    }
    assert alerts(selection) == {name: set(ALERTS) for name in selection.splits}
    assert selection.closed_arguments == ("action", "alert")
    assert selection.shared_entities == frozenset()


def test_a_named_argument_keeps_its_values_apart_and_others_may_be_shared(tmp_path: Path) -> None:
    log = write(tmp_path, incidents(400))
    selection = select(log, "alert")
    found = alerts(selection)
    assert sum(map(len, found.values())) == len(ALERTS)
    assert selection.closed_arguments == ("action", "host")
    with pytest.raises(
        UsageError,
        match="no call of the good conversations has an argument 'hots'; their arguments are action, alert, host",
    ):
        select(log, "hots")
    made = init(log, tmp_path / "desk", "--split-by", "alert")
    assert made.exit_code == 0, made.output
    lines = " ".join(made.output.split())
    assert (
        "no argument of a call is in two splits, except for action, host: few values, or not named with --split-by"
        in lines
    )
    assert json.loads((tmp_path / "desk" / "traces.json").read_text())["closed_arguments"] == ["action", "host"]


def test_a_split_without_tasks_is_a_warning_that_names_what_to_do(tmp_path: Path) -> None:
    made = init(write(tmp_path, incidents(24)), tmp_path / "desk", "--split-by", "action")
    assert made.exit_code == 0, made.output
    lines = " ".join(made.output.split())
    assert "warning: no task is left for held_out and validation" in lines
    assert "--split-by" in lines


def test_conversations_with_one_opening_are_tasks_of_their_own_if_the_user_goes_on_differently(tmp_path: Path) -> None:
    log = write(tmp_path, incidents(60, opening="our site is down"))
    selection = select(log)
    assert len(selection.tasks) == 60
    assert selection.num_contradicted == 0
    assert min(map(len, selection.splits.values())) > 0
    assert init(log, tmp_path / "desk").exit_code == 0
    findings = check_recipe(tmp_path / "desk", Options()).findings
    assert [one.symptom for one in findings if one.severity == "error"] == []


def test_conversations_in_which_the_user_writes_the_same_are_one_task(tmp_path: Path) -> None:
    rows = [row for row in incidents(30) for _ in range(2)]
    selection = select(write(tmp_path, iter(rows)))
    assert len(selection.tasks) == 30
    assert [len(task.good) for task in selection.tasks] == [2] * 30


def test_tasks_without_a_call_are_split_by_their_opening(tmp_path: Path) -> None:
    rows = [
        {"messages": [
            {"role": "user", "content": f"question {number // 2}"},
            {"role": "assistant", "content": "yes?"},
            {"role": "user", "content": f"more {number}"},
            {"role": "assistant", "content": "done"},
        ]}
        for number in range(80)
    ]  # fmt: skip
    selection = select(write(tmp_path, iter(rows)))
    openings = [{one.task.messages[0]["content"] for one in members} for members in selection.splits.values()]
    assert len(selection.tasks) == 80
    assert sum(map(len, openings)) == 40
