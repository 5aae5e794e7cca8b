"""Environments that were not written for the checks: their tools are reached, and nothing wrong is reported of them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sparring.checks import CHECKS
from sparring.checks.evidence.explore import explore_task, reach, reached
from sparring.checks.evidence.subject import Subject
from sparring.checks.running.check_report import Checked, CheckReport
from sparring.checks.running.deadlines import Watch
from sparring.checks.running.decide import one_of_a_kind, run_rule
from sparring.checks.running.run import Options, check_recipe
from sparring.config import load_config
from sparring.environments.suites import sop
from sparring.findings import Finding, Severity

FOREIGN = Path(__file__).parent / "foreign"
RECIPE = """
[data]
train = "environment:tasks"

[environment]
target = "environment:Desk"
max_turns = 8

[reward]
reward = "environment:reward"
"""
HEAD = """
from sparring.environments import Environment, StatefulEnvironment, tool
from sparring.types import Task

def tasks():
    return [Task(id=f"t{n}", messages=({"role": "user", "content": f"Look at room: R{n}."},), seed=n) for n in range(12)]

def reward(trajectory):
    return 0.0
"""


def build_subject(folder: Path, code: str, **further: str) -> Subject:
    """Build a recipe with an environment `Desk`; `further` are modules next to it."""
    (folder / "recipe.toml").write_text(RECIPE, "utf-8")
    for name, text in {"environment": HEAD + code, **further}.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    recipe = folder / "recipe.toml"
    return Subject(load_config(recipe), recipe, watch=Watch(seconds=60))


def asked(subject: Subject, rule: str) -> tuple[list[Finding], Checked]:
    return asyncio.run(run_rule(CHECKS[rule], subject))


@pytest.mark.parametrize("name", sop.DOMAINS)
def test_the_tools_of_a_domain_are_reached_without_its_expert(name: str) -> None:
    module = f"sparring.environments.suites.sop.{name}"
    recipe = FOREIGN / "sop_without_expert" / "recipe.toml"
    overrides = [f"environment.target=environment:{name}", f"data.train={module}:train_tasks"]
    overrides += [f"reward.{part}={module}:{part}" for part in ("reward", "scorer")]
    subject = Subject(load_config(recipe, overrides), recipe, watch=Watch(seconds=60))
    for task in subject.sample[:3]:
        asyncio.run(explore_task(subject, task))
    found = reached(subject)
    assert sum(found.values()) >= 0.9 * len(found), [tool for tool, is_reached in found.items() if not is_reached]


def test_tools_over_a_table_of_pandas_pass_a_whole_check() -> None:
    report = check_recipe(FOREIGN / "ledger_tables", Options(families=("environment",), minutes=2))
    assert report.reach == "3 of 3 tools reached by a legal call (100%)"
    assert [one.symptom for one in report.findings] == []
    states = {one.name: one.state for one in report.checked}
    assert states["environment.same_elsewhere"] == states["environment.leaks"] == "decided"


def test_a_game_of_gymnasium_whose_tasks_differ_by_seed_passes() -> None:
    report = check_recipe(FOREIGN / "gymnasium_grid", Options(families=("environment", "data"), minutes=2))
    assert report.reach == "1 of 1 tools reached by a legal call (100%)"
    assert [one.symptom for one in report.findings if one.severity is not Severity.NOTE] == []


def test_an_environment_that_starts_slowly_is_accused_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOW_PROCESS_SECONDS", "0.5")
    report = check_recipe(FOREIGN / "slow_process", Options(families=("environment",), minutes=0.15))
    assert report.errors == ()
    assert {one.state for one in report.checked} == {"decided", "skipped", "left_out"}
    (note,) = [one for one in report.findings if "left_out" in one.evidence]
    assert note.evidence["left_out"] == [one.name for one in report.checked if one.state == "left_out"]
    assert "--minutes" in note.change


@pytest.mark.timeout(0)  # whose alarm would be in the way of the watch's
@pytest.mark.parametrize(
    "rule", ["environment.plays", "environment.close", "environment.leaks", "environment.same_twice"]
)
def test_a_late_reset_is_reported_as_late_by_every_rule(rule: str, tmp_path: Path) -> None:
    code = """
import time

class Desk(Environment):
    def reset(self, task):
        time.sleep(30)

    @tool
    def look(self, room: str) -> str:
        return room
"""
    subject = build_subject(tmp_path, code)
    subject.watch.seconds = subject.watch.start_seconds = 0.1
    found, checked = asked(subject, rule)
    assert (found, checked.state) == ([], "undecided")
    assert "Desk.reset() had not returned after" in str(checked.reason)


@pytest.mark.timeout(0)
def test_a_late_close_is_no_close_that_fails(tmp_path: Path) -> None:
    code = """
import time

class Desk(Environment):
    is_reset = False

    def reset(self, task):
        self.is_reset = True

    @tool
    def look(self, room: str) -> str:
        return room

    def close(self):
        time.sleep(0 if self.is_reset else 30)
"""
    subject = build_subject(tmp_path, code)
    subject.watch.seconds = 0.1
    found, checked = asked(subject, "environment.close")
    assert (found, checked.state) == ([], "undecided")
    assert "Desk.close() had not returned after" in str(checked.reason)


KEEPS = """
class Desk(StatefulEnvironment):
    seen = []
    {persists}

    def reset(self, task):
        super().reset(task)
        {keep}

    @tool
    def look(self, room: str) -> str:
        return "a room"
"""


@pytest.mark.parametrize("keep", ['Desk.seen.append("x")', "Desk.seen.append(task.id)"])
def test_a_text_more_an_episode_is_a_leak_unless_the_class_declares_that_it_persists(keep: str, tmp_path: Path) -> None:
    found, _ = asked(build_subject(tmp_path, KEEPS.format(keep=keep, persists="")), "environment.leaks")
    assert [(one.severity, "Desk.seen" in json.dumps(one.evidence)) for one in found] == [(Severity.ERROR, True)]
    (tmp_path / "declared").mkdir()
    declared = KEEPS.format(keep=keep, persists='persists = ("seen",)')
    assert asked(build_subject(tmp_path / "declared", declared), "environment.leaks")[0] == []


def test_what_is_filled_once_is_no_leak(tmp_path: Path) -> None:
    keep = "Desk.seen.extend([[1], [2], [3], [4], [5], [6]] if not Desk.seen and task.seed > 2 else [])"
    assert asked(build_subject(tmp_path, KEEPS.format(keep=keep, persists="")), "environment.leaks")[0] == []


@pytest.mark.parametrize("verb", ["act", "do", "play", "mkdir", "look_up"])
def test_a_tool_that_changes_what_another_reads_may_answer_by_what_was_done(verb: str, tmp_path: Path) -> None:
    code = f"""
class Desk(Environment):
    def reset(self, task):
        self.done = []

    @tool
    def {verb}(self, room: str) -> str:
        self.done.append(room)
        return f"number {{len(self.done)}}"

    @tool
    def history(self) -> list[str]:
        return self.done
"""
    assert asked(build_subject(tmp_path, code), "environment.order")[0] == []


def test_a_tool_named_for_a_change_that_only_counts_its_calls_is_named(tmp_path: Path) -> None:
    code = """
class Desk(Environment):
    def reset(self, task):
        self.asked = 0

    @tool
    def book(self, room: str) -> str:
        self.asked += 1
        return f"{room} is free" if self.asked == 1 else "ask later"

    @tool
    def floor(self, room: str) -> int:
        return len(room)
"""
    (found,) = asked(build_subject(tmp_path, code), "environment.order")[0]
    assert "the result of book depends on earlier calls" in found.symptom


TOOLS = """
import helper

class Desk(Environment):
    @tool
    def look(self, room: str) -> str:
        if not room.startswith("R"):
            raise ValueError(f"no room {room}")
        return "a room"

    @tool
    def rate(self, room: str) -> float:
        return helper.rate(room)

    @tool
    def open(self, code: str) -> str:
        if sum(code.encode()) != 1643:
            raise KeyError(code)
        return "open"
"""
HELPER = """
def rate(room):
    return RATES[room]
"""


def test_a_broken_tool_is_an_error_with_its_line_and_an_unreached_one_is_not_tested(tmp_path: Path) -> None:
    subject = build_subject(tmp_path, TOOLS, helper=HELPER)
    findings, _ = asked(subject, "environment.tools_answer")
    by_severity = {one.severity: one for one in findings}
    assert set(by_severity) == {Severity.ERROR, Severity.NOTE}
    broken, untested = by_severity[Severity.ERROR], by_severity[Severity.NOTE]
    assert broken.symptom.startswith("rate failed at every one of")
    assert broken.evidence["tried"][0]["line"] == f"{tmp_path / 'helper.py'}:3"
    assert untested.evidence["not_tested"] == ["open"]
    assert reach(subject) == {"tools_reached": ["look"], "tools_not_tested": ["rate", "open"]}
    report = CheckReport.of("r", findings, [], seconds=1.0, measured=reach(subject))
    assert report.reach == "1 of 3 tools reached by a legal call (33%); not tested: rate, open"


@pytest.mark.parametrize(
    ("legal", "expected"),
    [("a.b.c", []), ("none", ["find returned nothing at every one of"])],
    ids=["a room that stands nowhere by itself", "no room"],
)
def test_lists_that_are_empty_for_guesses_are_no_stub(tmp_path: Path, legal: str, expected: list[str]) -> None:
    code = f"""
class Desk(Environment):
    @tool
    def find(self, house: str, room: str) -> list[str]:
        return ["chair"] if f"{{house}}.b.{{room}}" == "{legal}" else []

def tasks():
    fields = {{"rooms": "a.b.c"}} if "{legal}" == "a.b.c" else {{"house": "a", "room": "c"}}
    return [Task(id=f"t{{n}}", messages=({{"role": "user", "content": "Look into it."}},), fields=fields) for n in range(12)]
"""
    findings, _ = asked(build_subject(tmp_path, code), "environment.tools_answer")
    symptoms = [one.symptom for one in findings if one.severity is Severity.WARNING]
    assert len(symptoms) == len(expected)
    assert all(map(str.startswith, symptoms, expected))


@pytest.mark.parametrize(
    ("returns", "writes", "expected"),
    [
        ("None", True, None),
        ("''", True, "put returned nothing at every one of 12 calls, but no error: the model reads an empty result."),
        ("None", False, "put returned nothing at every one of 12 calls, but no error: the model reads `null`."),
    ],
    ids=["writes, null", "writes, empty", "reads, null"],
)
def test_a_tool_that_writes_may_answer_null_and_not_an_empty_text(
    tmp_path: Path, returns: str, writes: bool, expected: str | None
) -> None:
    code = f"""
class Desk(Environment):
    def reset(self, task):
        self.rooms = {{}}

    @tool
    def put(self, room: str) -> str | None:
        if {writes}:
            self.rooms[room] = "chair"
        return {returns}

    def final_state(self):
        return self.rooms

def tasks():
    return [Task(id=f"t{{n}}", messages=({{"role": "user", "content": f"Furnish it. room: R{{n}}"}},)) for n in range(12)]
"""
    findings, _ = asked(build_subject(tmp_path, code), "environment.tools_answer")
    symptoms = [one.symptom for one in findings if one.severity is Severity.WARNING]
    assert [re.sub(r"one of \d+", "one of 12", one) for one in symptoms] == [
        one for one in [expected] if one is not None
    ]


def test_a_state_behind_a_first_call_and_a_code_in_an_answer_are_reached(tmp_path: Path) -> None:
    code = """
class Desk(Environment):
    def reset(self, task):
        self.token, self.is_in = f"tk-{task.seed}", False

    @tool
    def enter(self, room: str) -> dict[str, str]:
        self.is_in = room[:1] == "R"
        return {"session_token": self.token} if self.is_in else {"error": "no such room"}

    @tool
    def chairs(self, token: str) -> dict[str, int | str]:
        if not self.is_in or token != self.token:
            return {"error": "not in a room"}
        return {"chairs": 4}
"""
    subject = build_subject(tmp_path, code)
    found = asyncio.run(explore_task(subject, subject.sample[0]))
    legal = found.legal("chairs")[0]
    assert legal.call.arguments == {"token": f"tk-{subject.sample[0].seed}"}
    assert [one.tool for one in legal.before] == ["enter"]


def test_calls_of_recorded_conversations_are_tried(tmp_path: Path) -> None:
    subject = build_subject(tmp_path, TOOLS, helper=HELPER)
    rows: list[dict[str, Any]] = [{"tool": "open", "arguments": {"code": "9817-quite-unknown"}}]
    object.__setattr__(subject.user_inputs, "production", tuple(rows))
    asyncio.run(explore_task(subject, subject.sample[0]))
    assert reached(subject)["open"]


def test_randomness_behind_an_adapters_call_is_put_down_to_the_users_deepest_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import rooms
from sparring.environments.adapters import Adapter
from sparring.environments.schema_tools import SchemaTool

class Desk(Adapter):
    @classmethod
    def list_tools(cls):
        return [SchemaTool("look", "Look.", {"type": "object", "properties": {"room": {"type": "string"}}})]

    async def call_listed(self, name, arguments):
        return rooms.seen()
"""
    package, recipe = tmp_path / "package", tmp_path / "recipe"
    package.mkdir()
    recipe.mkdir()
    (package / "rooms.py").write_text("import random\n\ndef seen():\n    return random.random()\n", "utf-8")
    monkeypatch.syspath_prepend(str(package))
    (found,) = asked(build_subject(recipe, code), "environment.randomness")[0]
    assert found.evidence["seen"][0]["line"] == f"{package / 'rooms.py'}:4"


def test_findings_of_one_kind_are_one_with_their_count() -> None:
    def finding(symptom: str, change: str) -> Finding:
        return Finding(
            rule="r.s", severity=Severity.ERROR, symptom=symptom, evidence={"tool": symptom}, change=change, confirm="c"
        )

    merged = one_of_a_kind([finding("a fails.", "x"), finding("b fails.", "x"), finding("c fails.", "y")])
    assert [one.symptom for one in merged] == ["a fails. (2 findings of this kind)", "c fails."]
    assert merged[0].evidence == {"tool": "a fails.", "count": 2, "also": ["b fails."]}
