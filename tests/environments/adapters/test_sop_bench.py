"""A checkout in SOP-Bench's layout that this test writes itself: loading, its tools in a process, scoring, and the licence."""

import asyncio
import csv
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("jsonschema", reason="jsonschema is not installed; pip install 'sparring[sop-bench]'")

from sparring.assembly import load_tasks
from sparring.checks import CHECKS
from sparring.checks.evidence.subject import Subject
from sparring.cli import app
from sparring.config import load_config
from sparring.environments import ToolError, ToolResult, execute, opened
from sparring.environments.adapters.sop_bench import SopBench, scorer, tasks
from sparring.environments.base import reset
from sparring.errors import DataError, InfrastructureError, UsageError
from sparring.findings import Finding
from sparring.scorers import evaluate_score
from sparring.types import Outcome, Task, Trajectory

TOOLS = """
import os, random, sys, time
print("import")

class HelperManager:
    pass

del HelperManager

class KilnManager:
    def __init__(self):
        print("hello from the constructor")

    def process_tool_call(self, name, arguments):
        print("called", name)
        if name == "readPyrometer":
            return {"kiln": arguments["kiln"], "heat": float("nan"), "seen": ("a", 2), "tag": Odd(), "marks": {"x"}}
        if name == "listArguments":
            return sorted(arguments)
        if name == "draw":
            return random.randint(0, 10**9)
        if name == "variable":
            return os.environ.get(arguments["kiln"])
        if name == "stop":
            {"exit": lambda: sys.exit("bye"), "die": lambda: os._exit(3), "hang": lambda: time.sleep(60)}[arguments["kiln"]]()
        raise KeyError(name)

class Odd:
    def __str__(self):
        return "odd"
"""


def specification(name: str, required: tuple[str, ...] = ()) -> dict[str, Any]:
    properties = {"kiln": {"type": "string"}, "shift": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"toolSpec": {"name": name, "description": f"{name}.", "inputSchema": {"json": schema}}}


NAMES = ("stop", "readPyrometer", "listArguments", "draw", "variable")
ROWS = [
    {"kiln": "K1", "glaze": "blue", "decision": "fire", "degrees": "1200", "open": "False"},
    {"kiln": "K2", "glaze": 'a, "b"', "decision": "wait", "degrees": "900.5", "open": "True"},
    {"kiln": "K3", "glaze": "", "decision": "", "degrees": "", "open": ""},
    {"kiln": "K4", "glaze": "red", "decision": "fire", "degrees": "", "open": "False"},
]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "LICENSE").write_text("Potters' Licence 1.0\n")
    folder = tmp_path / "src/amazon_sop_bench/benchmarks/data/kiln_check"
    folder.mkdir(parents=True)
    (folder / "LICENSE.md").write_text("Do not fire models on this.\n")
    (folder / "sop.txt").write_text("1. Read the pyrometer.\n2. Decide.\n")
    (folder / "toolspecs.json").write_text(
        json.dumps([specification(name, ("kiln",) if name == "stop" else ()) for name in NAMES])
    )
    (folder / "tools.py").write_text(TOOLS)
    metadata = {
        "name": "kiln_check",
        "input_columns": ["kiln", "glaze"],
        "output_columns": ["decision", "degrees", "open"],
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    write_rows(folder, ROWS)
    return tmp_path


def write_rows(folder: Path, rows: list[dict[str, str]]) -> None:
    with (folder / "test_set_with_outputs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def folder_of(checkout: Path) -> Path:
    return checkout / "src/amazon_sop_bench/benchmarks/data/kiln_check"


def play(
    checkout: Path, *calls: tuple[str, Any], task: Task | None = None, call_seconds: float = 20.0
) -> list[ToolResult]:
    options: dict[str, Any] = {"path": str(checkout), "domain": "kiln_check", "call_seconds": call_seconds}
    environment = SopBench.with_options(**options)(**options)
    first = task or tasks(checkout, "kiln_check")[0]

    async def main() -> list[ToolResult]:
        async with opened(environment, first):
            await reset(environment, first)
            return [await execute(environment, name, arguments) for name, arguments in calls]

    return asyncio.run(main())


def test_a_task_shows_the_declared_inputs_and_hides_what_is_scored(checkout: Path) -> None:
    first, second, third = tasks(checkout, "kiln_check")
    text = first.messages[0]["content"]
    assert "<sop>\n1. Read the pyrometer.\n2. Decide.\n</sop>" in text
    assert "The case:\nkiln: K1\nglaze: blue\n\n" in text
    assert (
        "one <final_output>. Its fields are decision (text), degrees (number), open (true or false); null for" in text
    )
    assert "1200" not in text
    assert first.fields["inputs"] == {"kiln": "K1", "glaze": "blue"}
    assert 'glaze: a, "b"\n' in second.messages[0]["content"]
    # Row 3 has no label at all and is left out; row 4 lacks one, which is null then.
    assert [task.id for task in (first, second, third)] == ["kiln_check-0", "kiln_check-1", "kiln_check-2"]
    assert first.fields["answer"] == {"decision": "fire", "degrees": 1200.0, "open": False}
    assert third.fields["answer"] == {"decision": "fire", "degrees": None, "open": False}
    assert len(tasks(checkout, "kiln_check", num=2)) == 2


def test_what_a_task_does_not_have_as_the_checkout_has_it_is_listed(checkout: Path) -> None:
    metadata = {"input_columns": ["kiln", "decision"], "output_columns": ["decision"]}
    (folder_of(checkout) / "metadata.json").write_text(json.dumps(metadata))
    first, *_ = tasks(checkout, "kiln_check")
    assert first.fields["repairs"] == [
        "The prompt ends with a request for one <final_output> with its fields, which the scorer reads.",
        "1 of 4 rows have no label and are left out.",
        "The columns ['decision'] are declared as inputs and scored, so they are not shown.",
    ]
    assert "decision: fire" not in first.messages[0]["content"]
    (folder_of(checkout) / "sop.txt").write_bytes(b"Fire at 1200 \xb0C.")
    with pytest.raises(DataError, match=r"sop.txt cannot be read: .*0xb0"):
        tasks(checkout, "kiln_check")


def grade(task: Task, text: str, *, last: str = "assistant") -> float:
    trajectory = Trajectory(
        id="t",
        task=task,
        attempt=0,
        turns=(),
        messages=({"role": last, "content": text},),
        outcome=Outcome.FINISHED,
        reward=None,
        score=None,
    )
    return asyncio.run(scored(trajectory))


async def scored(trajectory: Trajectory) -> float:
    return (await evaluate_score(scorer, trajectory)).value


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('<final_output>{"decision": "fire", "degrees": 1200, "open": false}</final_output>', 1.0),
        ('<final_output>{"decision": "fire", "degrees": 1200, "open": false, "note": "x"}</final_output>', 1.0),
        ('<final_output>{"decision": "Fire", "degrees": 1200, "open": false}</final_output>', 0.0),
        ('<final_output>{"decision": "do not fire", "degrees": 1200, "open": false}</final_output>', 0.0),
        ('<final_output>{"decision": "fire", "degrees": "1200", "open": false}</final_output>', 0.0),
        ('<final_output>{"decision": "fire", "degrees": 1200, "open": null}</final_output>', 0.0),
        ('<final_output>{"decision": "fire", "degrees": 1200}</final_output>', 0.0),
        ('<final_decision>{"decision": "fire", "degrees": 1200, "open": false}</final_decision>', 0.0),
        ('<final_output>{"decision": "fire", "degrees": 1200, "open": false}</final_output>' * 2, 0.0),
        ('<final_output>[{"decision": "fire", "degrees": 1200, "open": false}]</final_output>', 0.0),
        ("fire 1200 false", 0.0),
    ],
)
def test_scoring_is_strict(checkout: Path, text: str, score: float) -> None:
    assert grade(tasks(checkout, "kiln_check")[0], text) == score


def test_null_is_right_only_where_there_is_no_label(checkout: Path) -> None:
    third = tasks(checkout, "kiln_check")[2]
    assert grade(third, '<final_output>{"decision": "fire", "degrees": null, "open": false}</final_output>') == 1.0
    assert grade(third, '<final_output>{"decision": "fire", "degrees": 0, "open": false}</final_output>') == 0.0


def test_tools_answer_json_from_a_process_that_sees_little(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "key")
    read, given, null, secret, unknown, missing = play(
        checkout,
        ("readPyrometer", {"kiln": "K1"}),
        ("listArguments", {"kiln": ""}),
        ("listArguments", {"shift": None}),
        ("variable", {"kiln": "SECRET"}),
        ("readPyrometer", {}),
        ("stop", {}),
    )
    assert read.content == '{"kiln":"K1","heat":null,"seen":["a",2],"tag":"odd","marks":["x"]}'
    assert read.transition["repairs"] == [
        "result.heat: nan became null",
        "result.tag: Odd became str",
        "result.marks: set became list",
    ]
    assert given.content == '["kiln"]'
    assert "repairs" not in given.transition
    assert null.content == "error: listArguments: argument shift: None is not of type 'integer'"
    assert secret.content == "null"
    assert unknown.error is ToolError.TOOL_RAISED
    assert unknown.content == "error: readPyrometer failed: KeyError: 'kiln'"
    assert missing.content == "error: stop: 'kiln' is a required property"


def test_the_tools_stand_in_the_order_of_the_checkout(checkout: Path) -> None:
    schemas = SopBench.with_options(path=str(checkout), domain="kiln_check").tool_schemas()
    assert tuple(schema["function"]["name"] for schema in schemas) == NAMES


def test_tools_that_draw_unseeded_numbers_are_seen_to_do_so(checkout: Path) -> None:
    first, *_ = tasks(checkout, "kiln_check")
    draws = [play(checkout, ("draw", {}), task=first)[0].content for _ in range(2)]
    assert draws[0] != draws[1]


def test_an_exit_is_an_error_of_the_tool_and_a_death_or_a_hang_one_of_the_environment(checkout: Path) -> None:
    stopped, after = play(checkout, ("stop", {"kiln": "exit"}), ("listArguments", {}))
    assert stopped.content == "error: stop failed: SystemExit: bye"
    assert after.content == "[]"
    with pytest.raises(InfrastructureError, match="died when requested to answer 'stop'"):
        play(checkout, ("stop", {"kiln": "die"}))
    with pytest.raises(InfrastructureError, match=r"took more than 0.5 s to answer 'stop'"):
        play(checkout, ("stop", {"kiln": "hang"}), call_seconds=0.5)


def test_tools_that_cannot_be_imported_are_an_outage(checkout: Path) -> None:
    (folder_of(checkout) / "tools.py").write_text("import no_such_module")
    with pytest.raises(InfrastructureError, match=r"cannot be used: ModuleNotFoundError: .*no_such_module"):
        play(checkout)


def test_no_process_outlives_its_episode_also_when_that_is_cancelled_at_its_start(checkout: Path) -> None:
    options = {"path": str(checkout), "domain": "kiln_check"}
    environment_class = SopBench.with_options(**options)
    task = tasks(checkout, "kiln_check")[0]
    environments = [environment_class(**options) for _ in range(6)]

    async def episode(environment: Any) -> None:
        async with opened(environment, task):
            await reset(environment, task)
            await execute(environment, "stop", {"kiln": "hang"})

    async def main() -> None:
        playing = [asyncio.create_task(episode(environment)) for environment in environments]
        for delay, one in zip((0, 0, 0.02, 0.1, 0.5, 1.0), playing, strict=True):
            await asyncio.sleep(delay)
            one.cancel()
        await asyncio.wait(playing, timeout=20)
        assert all(one.cancelled() for one in playing)

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 20
    for environment in environments:
        if environment._worker is not None:
            with pytest.raises(ProcessLookupError):
                os.kill(environment._worker._process.pid, 0)


def test_columns_that_are_not_declared_as_inputs_must_be_chosen_and_not_be_scored(checkout: Path) -> None:
    (folder_of(checkout) / "metadata.json").write_text(json.dumps({"output_columns": ["decision"]}))
    with pytest.raises(UsageError, match=r"declares no input columns.*\['kiln', 'glaze', 'degrees', 'open'\]"):
        tasks(checkout, "kiln_check")
    assert "The case:\nkiln: K1\n\n" in tasks(checkout, "kiln_check", inputs=["kiln"])[0].messages[0]["content"]
    with pytest.raises(UsageError, match=r"\['decision'\] are scored"):
        tasks(checkout, "kiln_check", inputs=["kiln", "decision"])
    with pytest.raises(UsageError, match=r"\['clay'\] are not columns"):
        tasks(checkout, "kiln_check", inputs=["clay"])


def test_files_that_are_not_as_they_should_be_are_named(checkout: Path) -> None:
    folder = folder_of(checkout)
    with (folder / "test_set_with_outputs.csv").open("a") as file:
        file.write("K5,green\n")
    with pytest.raises(DataError, match="row 5 has 2 cells for 5 columns"):
        tasks(checkout, "kiln_check")
    (folder / "metadata.json").write_text(json.dumps({"output_columns": ["verdict"]}))
    with pytest.raises(DataError, match=r"no columns \['verdict'\]"):
        tasks(checkout, "kiln_check")
    with pytest.raises(UsageError, match=r"contains no SOP-Bench domain 'oven'.*: kiln_check"):
        tasks(checkout, "oven")


def recipe(checkout: Path, folder: Path, rights: str = "") -> Path:
    folder.mkdir()
    (folder / "environment.py").write_text(
        "from functools import partial\nfrom sparring.environments.adapters import sop_bench\n"
        f"held_out = partial(sop_bench.tasks, {str(checkout)!r}, 'kiln_check')\n"
    )
    (folder / "script.jsonl").write_text(
        json.dumps(
            {
                "role": "assistant",
                "content": '<final_output>{"decision": "fire", "degrees": 1200, "open": false}</final_output>',
            }
        )
        + "\n"
    )
    (folder / "recipe.toml").write_text(
        f"""
[data]
DATA = "environment:held_out"

[environment]
target = "sparring.environments.adapters.sop_bench:SopBench"

[environment.options]
path = {json.dumps(str(checkout))}
domain = "kiln_check"
{rights}

[reward]
reward = "sparring.environments.adapters.sop_bench:reward"
scorer = "sparring.environments.adapters.sop_bench:scorer"
"""
    )
    return folder / "recipe.toml"


def test_training_is_refused_with_the_licence_and_the_option_that_states_a_right(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = recipe(checkout, tmp_path / "recipe")
    path.write_text(path.read_text().replace("DATA", "train"))
    result = CliRunner().invoke(app, ["train", str(path), "--no-supervise"])
    assert result.exit_code == 2
    printed = " ".join(result.output.split())
    for words in ("CC BY-NC 4.0", "Potters' Licence 1.0", "Do not fire models on this.", "i_have_training_rights"):
        assert words in printed
    assert not (tmp_path / "runs").exists()


def write_agent_recipe(checkout: Path, folder: Path, rights: str) -> Path:
    """Write a recipe whose agent brings its own environment and works on the benchmark's tasks."""
    path = recipe(checkout, folder)
    path.write_text(
        '[data]\ntrain = "environment:train"\n\n[agent]\nfunction = "environment:play"\n\n'
        '[reward]\nreward = "sparring.environments.adapters.sop_bench:reward"\n'
    )
    with path.with_name("environment.py").open("a") as file:
        file.write(
            f"train = partial(held_out{rights})\n\nasync def play(task, session):\n    await session.chat(task.messages)\n"
        )
    return path


def test_training_is_refused_with_any_agent(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        app, ["train", str(write_agent_recipe(checkout, tmp_path / "recipe", "")), "--no-supervise"]
    )
    assert result.exit_code == 2
    printed = " ".join(result.output.split())
    for words in ("data.train", "CC BY-NC 4.0", "Potters' Licence 1.0", "i_have_training_rights"):
        assert words in printed
    assert not list(tmp_path.rglob("checkpoints"))


def test_tasks_whose_right_is_stated_may_be_trained_on_by_an_agent(
    checkout: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_agent_recipe(
        checkout, tmp_path / "recipe", ', i_have_training_rights="The potters wrote so on 1 May."'
    )
    assert len(load_tasks(load_config(path), path.parent).train) > 0
    assert "Potters' Licence 1.0" in caplog.text
    assert "The potters wrote so on 1 May." in caplog.text


def test_a_right_stated_for_the_environment_holds_for_the_tasks_that_it_plays(checkout: Path, tmp_path: Path) -> None:
    path = recipe(checkout, tmp_path / "recipe", 'i_have_training_rights = "The potters wrote so on 1 May."')
    path.write_text(path.read_text().replace("DATA", "train"))
    assert len(load_tasks(load_config(path), path.parent).train) > 0


@pytest.mark.parametrize("stated", [True, "", "  ", 1])
def test_a_right_is_stated_in_words(checkout: Path, stated: Any) -> None:
    with pytest.raises(UsageError, match="does not state a right"):
        SopBench.evaluation_only(path=str(checkout), domain="kiln_check", i_have_training_rights=stated)
    with pytest.raises(UsageError, match="does not state a right"):
        tasks(checkout, "kiln_check", i_have_training_rights=stated)


def test_a_stated_right_lifts_the_refusal_and_shows_the_licence(
    checkout: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {
        "path": str(checkout),
        "domain": "kiln_check",
        "i_have_training_rights": "The potters wrote so on 1 May.",
    }
    assert SopBench.evaluation_only(**options) is None
    SopBench.with_options(**options)
    assert "Potters' Licence 1.0" in caplog.text
    assert "The potters wrote so on 1 May." in caplog.text


DESK = """
class DeskManager:
    def process_tool_call(self, name, arguments):
        return {"decision": {"K1": "fire", "K2": "wait", "K4": "fire"}[arguments["kiln"]], "heat": float("nan")}
"""
EXAMPLE = '<final_output>{"decision": "wait", "degrees": 1, "open": true}</final_output>'


@pytest.mark.parametrize(
    ("example", "errors"),
    [
        (EXAMPLE, []),
        ("Say it in a few words.", []),
        (EXAMPLE.replace('"degrees": 1, ', ""), ["prompt.example"]),
        (EXAMPLE.replace("final_output", "final_response"), ["prompt.tag"]),
    ],
    ids=["right", "none", "a field is missing", "another tag"],
)
def test_the_page_s_recipe_is_checked_and_shows_the_procedure_s_own_defects_and_every_repair(
    checkout: Path, tmp_path: Path, example: str, errors: list[str]
) -> None:
    folder = folder_of(checkout)
    (folder / "tools.py").write_text(DESK)
    (folder / "toolspecs.json").write_text(json.dumps([specification("look", ("kiln",))]))
    (folder / "sop.txt").write_text(f"1. Look at the kiln.\n2. Decide. For example:\n{example}\n")
    path = recipe(checkout, tmp_path / "recipe")
    path.write_text(path.read_text().replace("DATA", "held_out"))
    subject = Subject(load_config(path), path)
    # All of it, the kiln's own defects among it, is seen without a task to train on.
    assert len(subject.sample) == 3

    async def found(name: str) -> list[Finding]:
        return list(await CHECKS[name].function(subject))

    async def main() -> None:
        assert await found("data.duplicates") == []
        prompts = [*await found("prompt.example"), *await found("prompt.tag")]
        assert [one.rule for one in prompts] == errors, prompts
        results, made = await found("environment.repairs")
        assert results.evidence["repairs"] == {"look: result.heat: nan became null": 3}
        assert list(made.evidence["repairs"].values()) == [3, 3]

    asyncio.run(main())


def test_it_is_evaluated_without_any_training_data(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = recipe(checkout, tmp_path / "recipe")
    path.write_text(
        path.read_text().replace("DATA", "held_out") + '\n[engine]\ntype = "scripted"\nscript = "script.jsonl"\n'
    )
    result = CliRunner().invoke(app, ["eval", str(path), "--json"])
    assert result.exit_code == 0, result.output
    # The script's answer is right for the first of the three tasks alone.
    assert json.loads(result.stdout)["evaluations"][0]["success"]["mean"] == pytest.approx(1 / 3)
