"""A defect that is planted in a clean agent of a user's own is found and named by its rule; the clean agent has none."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparring.checks import CHECKS
from sparring.checks.running.run import Options, check_recipe
from tests.checks.rule_runner import run_rules

DESK = Path(__file__).parent / "own_agents" / "desk"
RULES = [name for name, check in CHECKS.items() if check.family == "agent"]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A change of the clean agent that plants one defect."""

    name: str
    rule: str
    severity: str
    message: str
    """A part of the finding's symptom."""
    replace: tuple[tuple[str, str], ...]
    """What to replace in agent.py, and with what."""


PLANTED = [
    Planted(**{**one, "replace": tuple((change["old"], change["new"]) for change in one["replace"])})
    for one in tomllib.loads((DESK.parent / "defects.toml").read_text("utf-8"))["planted"]
]


HANGS = {"blocks"}
"""Those that never return, for which the rules above would wait long: they have a test of their own."""


def write_desk(planted: Planted, tmp_path: Path) -> Path:
    folder = shutil.copytree(DESK, tmp_path / "desk", ignore=shutil.ignore_patterns("__pycache__"))
    source = (folder / "agent.py").read_text("utf-8")
    for old, new in planted.replace:
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in the clean agent"
        source = source.replace(old, new)
    (folder / "agent.py").write_text(source, "utf-8")
    return folder


@pytest.mark.parametrize("planted", [one for one in PLANTED if one.name not in HANGS], ids=lambda one: one.name)
def test_a_defect_in_an_own_agent_is_found_and_named(planted: Planted, tmp_path: Path) -> None:
    folder = write_desk(planted, tmp_path)
    (verdict,) = run_rules([{"folder": str(folder), "rule": planted.rule, "options": {}}])
    named = [one for one in verdict["findings"] if planted.message in one["symptom"]]
    assert [one["severity"] for one in named] == [planted.severity], verdict


def test_an_agent_that_blocks_the_event_loop_is_interrupted_and_named(tmp_path: Path) -> None:
    (planted,) = (one for one in PLANTED if one.name in HANGS)
    folder = write_desk(planted, tmp_path)
    report = check_recipe(folder, Options(families=("agent",), minutes=0.5))
    named = [one for one in report.findings if one.rule == planted.rule and planted.message in one.symptom]
    assert [one.severity for one in named] == [planted.severity], report
    assert "`def play` without async" in named[0].change


def test_the_agent_that_blocks_is_not_accused_as_a_plain_function(tmp_path: Path) -> None:
    (planted,) = (one for one in PLANTED if one.name in HANGS)
    folder = write_desk(planted, tmp_path)
    source = (folder / "agent.py").read_text("utf-8")
    (folder / "agent.py").write_text(source.replace("async def play", "def play"), "utf-8")
    verdicts = run_rules([{"folder": str(folder), "rule": rule, "options": {}} for rule in RULES])
    assert {one["state"] for one in verdicts} == {"decided"}, verdicts
    assert [one for verdict in verdicts for one in verdict["findings"]] == []


def test_the_clean_agent_is_not_accused() -> None:
    verdicts = run_rules([{"folder": str(DESK), "rule": rule, "options": {}} for rule in RULES])
    assert {one["state"] for one in verdicts} == {"decided"}, verdicts
    assert [one for verdict in verdicts for one in verdict["findings"]] == []


def test_an_agent_whose_episodes_all_fail_leaves_the_other_rules_undecided(tmp_path: Path) -> None:
    folder = shutil.copytree(DESK, tmp_path / "desk", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "agent.py").open("a") as file:
        file.write("\n\nasync def play(task, session):\n    raise KeyError('no database')\n")
    report = check_recipe(folder, Options(families=("agent",)))
    states = {one.name: one.state for one in report.checked}
    assert [name for name, state in states.items() if state == "decided"] == ["agent.runs"], states
    reason = (
        "the agent failed in all of its episodes: play raised KeyError('no database'). This was before the policy's first "
        "turn, so the policy is not the cause"
    )
    assert report.decided == f"1 of {len(RULES)} checks decided; {len(RULES) - 1} undecided because {reason}"
    assert [one.rule for one in report.findings] == ["agent.runs", "agent.same_twice"]


@pytest.mark.parametrize("max_turns", [2, 4])
def test_an_agent_that_raises_at_the_limit_of_turns_is_explored_within_it(max_turns: int, tmp_path: Path) -> None:
    folder = shutil.copytree(DESK, tmp_path / "desk", ignore=shutil.ignore_patterns("__pycache__"))
    source = (folder / "agent.py").read_text("utf-8")
    assert source.count("range(8)") == 1
    (folder / "agent.py").write_text(source.replace("range(8)", "range(99)"), "utf-8")
    recipe = (folder / "recipe.toml").read_text("utf-8")
    (folder / "recipe.toml").write_text(recipe.replace("[agent]\n", f"[agent]\nmax_turns = {max_turns}\n"), "utf-8")
    verdicts = run_rules([{"folder": str(folder), "rule": rule, "options": {}} for rule in RULES])
    assert {one["state"] for one in verdicts} == {"decided"}, verdicts
    (found,) = [one for verdict in verdicts for one in verdict["findings"]]
    assert (found["rule"], found["severity"]) == ("agent.state", "warning")
    assert "used its turns" in found["symptom"]


def test_an_agent_that_fails_at_its_end_is_still_checked_by_its_requests(tmp_path: Path) -> None:
    folder = shutil.copytree(DESK, tmp_path / "desk", ignore=shutil.ignore_patterns("__pycache__"))
    source = (folder / "agent.py").read_text("utf-8")
    given = "AgentReport(reward=grade(task, messages), final_state=desk.state(), transitions=log)"
    assert source.count(given) == 1
    (folder / "agent.py").write_text(source.replace(given, "'no number'"), "utf-8")
    report = check_recipe(folder, Options(families=("agent",)))
    states = {one.name: one.state for one in report.checked}
    decided = {"agent.tools", "agent.history", "agent.secrets", "agent.context", "agent.side_effects"}
    assert {states[name] for name in decided} == {"decided"}
    assert {states[name] for name in ("agent.same_twice", "agent.reward_varies", "agent.ends")} == {"undecided"}


@pytest.mark.parametrize("kind", ["file", "function"])
def test_demonstrations_of_the_warm_start_reach_what_the_other_policies_do_not(kind: str, tmp_path: Path) -> None:
    folder = shutil.copytree(DESK, tmp_path / "desk", ignore=shutil.ignore_patterns("__pycache__"))
    source = (folder / "agent.py").read_text("utf-8")
    given = "AgentReport(reward=grade(task, messages), final_state=desk.state(), transitions=log)"
    assert source.count(given) == 1
    # No prompt and no result contains the name. The scorer accepts nothing that lends a book.
    lent = given.replace("grade(task, messages)", "float(desk.state() == {'Emma': 'Zoe Quill'})")
    (folder / "agent.py").write_text(source.replace(given, lent), "utf-8")
    recipe = (folder / "recipe.toml").read_text("utf-8").partition("[warm_start]")[0]
    (folder / "recipe.toml").write_text(recipe, "utf-8")
    rules = ("agent.reward_varies", "agent.agreement")
    before = run_rules([{"folder": str(folder), "rule": rule, "options": {}} for rule in rules])
    assert [[one["severity"] for one in verdict["findings"]] for verdict in before] == [["note"], []], before

    call = {"function": {"name": "borrow", "arguments": {"title": "Emma", "person": "Zoe Quill"}}}
    messages = [
        {"role": "user", "content": "Where is Emma?"},
        {"role": "assistant", "tool_calls": [{"id": "x", **call}]},
        {"role": "tool", "tool_call_id": "x", "content": "lent"},
        {"role": "assistant", "content": "It is lent."},
    ]
    if kind == "file":
        (folder / "demonstrations.jsonl").write_text(json.dumps({"messages": messages}))
        source = "demonstrations.jsonl"
    else:
        with (folder / "agent.py").open("a") as file:
            file.write(f"\n\ndef clerks(number, seed):\n    return [{ {'messages': messages, 'tools': []}!r}]\n")
        source = "agent:clerks"
    (folder / "recipe.toml").write_text(f'{recipe}[warm_start]\ndemonstrations = "{source}"\n', "utf-8")
    varies, agreement = run_rules([{"folder": str(folder), "rule": rule, "options": {}} for rule in rules])
    assert (varies["state"], varies["findings"]) == ("decided", [])
    (found,) = agreement["findings"]
    assert "gets the reward 1 (highest of all), but the score 0" in found["symptom"]
    assert found["evidence"]["policy"] == "a demonstration"


def test_where_no_answer_is_known_nothing_is_advised_that_an_own_agent_cannot_have(tmp_path: Path) -> None:
    folder = shutil.copytree(DESK, tmp_path / "desk", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "agent.py").open("a", encoding="utf-8") as file:
        file.write("\n\ndef scorer(episode):\n    return 0.0\n")
    (verdict,) = run_rules([{"folder": str(folder), "rule": "policies.expert", "options": {}}])
    (finding,) = verdict["findings"]
    assert "No right answer is known" in finding["symptom"]
    assert "demonstrate" not in finding["change"]


EXAMPLE = [
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "find", "arguments": "[1]"}}],
    },
    {"role": "tool", "tool_call_id": "x", "content": "B31"},
]


def test_an_example_in_the_prompt_with_odd_arguments_is_no_defect(tmp_path: Path) -> None:
    folder = shutil.copytree(DESK, tmp_path / "desk", ignore=shutil.ignore_patterns("__pycache__"))
    source = (folder / "agent.py").read_text("utf-8")
    assert "*task.messages]" in source
    (folder / "agent.py").write_text(source.replace("*task.messages]", f"*{EXAMPLE!r}, *task.messages]"), "utf-8")
    rules = ("agent.runs", "agent.same_twice", "agent.tools")
    verdicts = run_rules([{"folder": str(folder), "rule": rule, "options": {}} for rule in rules])
    assert {one["state"] for one in verdicts} == {"decided"}, verdicts
    assert [one for verdict in verdicts for one in verdict["findings"] if one["severity"] != "note"] == []


def test_the_documented_agent_is_clean_and_its_scorer_sees_the_state(tmp_path: Path) -> None:
    page = (DESK.parents[3] / "docs" / "agents.md").read_text("utf-8")
    (source,) = re.findall(r"<!-- example: handed_over/agent.py -->\n```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "agent.py").write_text(source, "utf-8")
    rows = [
        {"id": str(seat), "prompt": f"Book {seat}A for {person}.", "seat": f"{seat}A", "person": person}
        for seat, person in enumerate(("Emma", "Anne", "Harriet", "Jane"))
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    shutil.copy(DESK / "recipe.toml", tmp_path)
    verdicts = run_rules([{"folder": str(tmp_path), "rule": rule, "options": {}} for rule in RULES])
    assert {one["state"] for one in verdicts} == {"decided"}, verdicts
    assert [one for verdict in verdicts for one in verdict["findings"]] == []


def test_every_rule_on_own_agents_has_a_planted_defect() -> None:
    assert {planted.rule for planted in PLANTED} == set(RULES)


PROGRAM = """
import json, os, subprocess, sys, urllib.request

task = json.load(sys.stdin)
messages = task["messages"]
body = json.dumps({"model": "policy", "messages": messages}).encode()
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
given = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
PLANTED
print(json.dumps({"reward": float(len(given) > 3), "final_state": {"given": given}}))
"""


def write_program(folder: Path, planted: str = "") -> None:
    (folder / "program.py").write_text(PROGRAM.replace("PLANTED", planted), "utf-8")
    shutil.copy(DESK / "tasks.jsonl", folder)
    command = json.dumps([sys.executable, "program.py"])
    (folder / "recipe.toml").write_text(f'[data]\ntrain = "tasks.jsonl"\n[agent]\ncommand = {command}\n', "utf-8")


def test_a_program_is_played_too_and_a_process_that_it_leaves_is_found(tmp_path: Path) -> None:
    write_program(tmp_path, 'subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, '
                            "stderr=subprocess.DEVNULL)")  # fmt: skip
    runs, leaks = run_rules(
        [{"folder": str(tmp_path), "rule": rule, "options": {}} for rule in ("agent.runs", "agent.leaks")]
    )
    assert (runs["state"], runs["findings"]) == ("decided", [])
    assert "processes" in leaks["findings"][0]["symptom"]


def test_the_processor_time_of_a_program_that_starts_slowly_is_a_part_of_the_cost(tmp_path: Path) -> None:
    write_program(tmp_path, "import time\nwhile time.process_time() < 0.5: pass")
    report = check_recipe(tmp_path, Options(families=("agent", "budgets"), minutes=0.3))
    (cost,) = [one for one in report.findings if one.rule == "budgets.cost"]
    assert "The agent's program uses" in cost.symptom
    assert 0.5 <= cost.evidence["program_processor_seconds"] < 5
    assert "agent.function" in cost.change


def test_the_command_reports_first_what_it_could_decide_and_why_it_could_not_decide_the_rest(tmp_path: Path) -> None:
    write_program(tmp_path)
    checked = subprocess.run(
        [sys.executable, "-m", "sparring", "check", str(tmp_path), "--minutes", "3"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    first = checked.stdout.splitlines()[0]
    assert " checks decided; " in first, checked.stdout + checked.stderr
    assert "skipped because the recipe's agent brings its own environment" in first
    assert "Traceback" not in checked.stderr


def test_recorded_conversations_are_read_if_nothing_can_play_the_agent(tmp_path: Path) -> None:
    shutil.copy(DESK / "tasks.jsonl", tmp_path)
    (tmp_path / "recipe.toml").write_text('[data]\ntrain = "tasks.jsonl"\n[agent]\npull = true\n', "utf-8")
    call = {"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"title": "Emma"}'}}
    messages = [
        {"role": "system", "content": "The password is hunter2-hunter2."},
        {"role": "user", "content": "Where is Emma?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "error: unknown tool find"},
        {"role": "assistant", "content": "I do not know."},
    ]
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": messages}), "utf-8")
    options = {"production": str(tmp_path / "log.jsonl")}
    rules = ("agent.runs", "agent.secrets", "agent.tools")
    runs, secrets, tools = run_rules([{"folder": str(tmp_path), "rule": rule, "options": options} for rule in rules])
    assert runs["state"] == "skipped"
    assert "contains a password" in secrets["findings"][0]["symptom"]
    assert "a call of find that fits its schema is refused" in tools["findings"][0]["symptom"]
