"""A recipe made from logs passes the checks, and three steps of training are better than a policy that knows nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from sparring import MultiTurnRLEvaluator, MultiTurnRLTrainer
from sparring.checks.running.run import Options, check_recipe
from sparring.cli import app
from sparring.config import load_config
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.gateway.app import create_app
from sparring.runtime.plugins import load_object
from sparring.serving.record import Recording
from sparring.web.listener import Listener
from tests.traces.desk import Desk, as_pairs, as_spans, conversations

FIRST_TOOL = """
def act(messages):
    return {"tool_calls": [{"function": {"name": "find_order", "arguments": {"customer": "a 1"}}}]}
"""


def write_lines(path: Path, rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def pairs(folder: Path) -> Path:
    return write_lines(folder / "log.jsonl", (pair for row in conversations() for pair in as_pairs(row)))


def spans(folder: Path) -> Path:
    return write_lines(
        folder / "spans.jsonl", (as_spans(row, number) for number, row in enumerate(conversations(200, seed=1)))
    )


def recording(folder: Path) -> Path:
    """Record conversations over HTTP. The scripted model behind the endpoint answers as the log of the generator does."""
    rows = [row for row in conversations(150, seed=2) if row["good"]]
    answers = {
        json.dumps([one.get("content") or "" for one in row["messages"][:place]]): message
        for row in rows
        for place, message in enumerate(row["messages"])
        if message["role"] == "assistant"
    }
    engine = ScriptedMessages(
        lambda asked: answers[json.dumps([one.get("content") or "" for one in asked])], name="log"
    )

    async def play(client: httpx.AsyncClient, url: str, number: int, row: dict[str, Any]) -> None:
        for place, message in enumerate(row["messages"]):
            if message["role"] == "assistant":
                body = {"model": "m", "messages": row["messages"][:place], "tools": row["tools"]}
                response = await client.post(
                    f"{url.removesuffix('/v1')}/s/talk-{number}/v1/chat/completions", json=body
                )
                response.raise_for_status()

    async def run() -> None:
        async with Recording(folder / "recorded", engine, model="m") as recording:
            listener = Listener(create_app(recording), "127.0.0.1", 0)
            await listener.start()
            async with httpx.AsyncClient(timeout=60) as client:
                await asyncio.gather(*(play(client, listener.base_url, *one) for one in enumerate(rows)))
            await listener.stop()

    asyncio.run(run())
    return folder / "recorded"


SHAPES = {"pairs": pairs, "spans": spans, "recording": recording}
shapes = pytest.mark.parametrize("make_log", SHAPES.values(), ids=SHAPES)


def made(log: Path, folder: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["init", str(folder), "--from-traces", str(log), "--json", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@shapes
def test_a_recipe_from_a_log_passes_the_checks(make_log: Callable[[Path], Path], tmp_path: Path) -> None:
    made(make_log(tmp_path), tmp_path / "desk", "--model", "scratch")
    report = check_recipe(tmp_path / "desk", Options())
    assert [finding.rule for finding in report.findings if finding.severity == "error"] == []
    assert {finding.rule for finding in report.findings if finding.severity == "warning"} <= {"baseline.success"}


def test_a_model_from_scratch_uses_one_thread(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", conversations(40))
    made(log, tmp_path / "small", "--model", "scratch")
    made(log, tmp_path / "large")
    assert load_config(tmp_path / "small" / "recipe.toml").run.num_threads == 1
    assert load_config(tmp_path / "large" / "recipe.toml").run.num_threads is None


@shapes
def test_three_steps_beat_always_calling_the_first_tool(
    make_log: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(make_log(tmp_path), tmp_path / "desk", "--model", "scratch")
    (tmp_path / "desk" / "first.py").write_text(FIRST_TOOL, "utf-8")
    monkeypatch.chdir(tmp_path)
    changes = ["schedule.max_steps=3", "schedule.val_every=0", "run.num_threads=1"]
    changes += [
        "batch.global_batch_size=2",
        "evaluation.val_num_tasks=8",
        "evaluation.eval_num_tasks=16",
        "evaluation.eval_group_size=2",
    ]
    trainer = MultiTurnRLTrainer("desk", overrides=changes, check=False, quiet=True)
    trainer.train()
    policies = ["script:first:act", "tuned"]
    report = MultiTurnRLEvaluator(trainer, policies=policies, temperatures=[1.0], quiet=True).evaluate()
    first, tuned = report.evaluations
    assert first.success.mean == 0.0
    assert tuned.success.low > first.success.high


def test_what_was_read_and_left_out_is_counted(tmp_path: Path) -> None:
    counts = made(pairs(tmp_path), tmp_path / "desk")
    assert counts["conversations"] == 300
    assert counts["rows"] == {"request and response": sum(len(list(as_pairs(row))) for row in conversations())}
    bad = sum(not row["good"] for row in conversations())
    assert counts["left_out"] == {"it is marked as bad": bad}
    assert counts["shared_entities"] == []
    assert counts["tools"]["cancel_order"]["writes"] is True
    assert [name for name, tool in counts["tools"].items() if tool["writes"] or tool["inferred"]] == ["cancel_order"]
    calls = counts["calls"]
    assert calls["of_writing_tools"] > 30
    assert calls["answered_in_every_task"] + calls["of_writing_tools"] == calls["all"]
    assert calls["share_answered"] == pytest.approx(calls["answered_in_every_task"] / calls["all"])


def test_rows_that_cannot_be_read_are_printed_and_listed(tmp_path: Path) -> None:
    rows = list(conversations(60))
    tools = [{"type": "function", "function": {"name": "find_order", "parameters": {"type": "nonsense"}}}]
    log = write_lines(tmp_path / "log.jsonl", [*rows, {**rows[0], "tools": tools}, {**rows[0], "good": "perhaps"}])
    made = CliRunner().invoke(app, ["init", str(tmp_path / "desk"), "--from-traces", str(log), "--model", "scratch"])
    assert made.exit_code == 0, made.output
    lines = made.stdout.splitlines()
    assert lines[1] == "warning: 2 rows cannot be read and are left out"
    assert "line 62: good = 'perhaps' is neither good nor bad" in lines[2]
    assert "line 61: tool 'find_order' has no usable JSON schema" in lines[3]
    assert len(json.loads((tmp_path / "desk" / "traces.json").read_text())["unread"]) == 2


def test_the_three_formats_of_one_log_make_the_same_tasks(tmp_path: Path) -> None:
    rows = list(conversations(60))
    lists = write_lines(tmp_path / "lists.jsonl", rows)
    logged = write_lines(tmp_path / "pairs.jsonl", (pair for row in rows for pair in as_pairs(row)))
    exported = write_lines(tmp_path / "spans.jsonl", (as_spans(row, number) for number, row in enumerate(rows)))
    for name, log in (("lists", lists), ("pairs", logged), ("spans", exported)):
        made(log, tmp_path / name)
    for file in (
        "tasks/train.jsonl",
        "tasks/held_out.jsonl",
        "demonstrations.jsonl",
        "fixtures/calls.jsonl",
        "tools.json",
    ):
        texts = {(tmp_path / name / file).read_text("utf-8") for name in ("lists", "pairs", "spans")}
        assert len(texts) == 1, file


def test_training_and_held_out_tasks_share_no_entity_and_demonstrations_are_of_training_tasks(tmp_path: Path) -> None:
    made(pairs(tmp_path), tmp_path / "desk")
    lines = {
        name: [
            json.loads(line) for line in (tmp_path / "desk" / "tasks" / f"{name}.jsonl").read_text("utf-8").splitlines()
        ]
        for name in ("train", "validation", "held_out")
    }
    customers = {
        name: {row["prompt"][-1]["content"].split(maxsplit=1)[1] for row in rows} for name, rows in lines.items()
    }
    assert min(map(len, customers.values())) > 10
    assert not customers["train"] & (customers["validation"] | customers["held_out"])
    openings = [row["prompt"][-1]["content"] for row in lines["train"]]
    for line in (tmp_path / "desk" / "demonstrations.jsonl").read_text("utf-8").splitlines():
        assert json.loads(line)["messages"][1]["content"] in openings


def test_an_unmarked_conversation_that_the_scorer_accepts_and_no_long_one_is_a_demonstration(tmp_path: Path) -> None:
    marked, *others = [row for row in conversations(30) if row["good"]]
    right = {name: value for name, value in marked.items() if name != "good"}
    wrong = {**right, "messages": [*right["messages"][:-1], {"role": "assistant", "content": "shelf x"}]}
    long = {**others[0], "messages": [{"role": "system", "content": "word " * 4000}, *others[0]["messages"][1:]]}
    rows = [marked, right, wrong, long, *others[1:]]
    made(write_lines(tmp_path / "log.jsonl", rows), tmp_path / "desk", "--model", "scratch")
    counts = json.loads((tmp_path / "desk" / "traces.json").read_text("utf-8"))
    lines = (tmp_path / "desk" / "demonstrations.jsonl").read_text("utf-8").splitlines()
    train = (tmp_path / "desk" / "tasks" / "train.jsonl").read_text("utf-8")
    assert json.dumps(marked["messages"][1]["content"]) in train
    assert counts["demonstrations_by_scorer"] == 1
    assert counts["too_long_for_a_demonstration"] == int("word word" in train) == 1
    assert len(lines) == counts["demonstrations"] == counts["tasks"]["train"] - 1 + 1
    assert not any("shelf x" in line or "word word" in line for line in lines)


def test_existing_files_are_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "reward.py").write_text("mine", "utf-8")
    log = write_lines(tmp_path / "log.jsonl", conversations(20))
    result = CliRunner().invoke(app, ["init", str(folder), "--from-traces", str(log)])
    assert result.exit_code == 2
    assert [path.name for path in folder.iterdir()] == ["reward.py"]
    assert (folder / "reward.py").read_text("utf-8") == "mine"


def test_the_example_of_the_page_is_what_the_command_prints(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "desk.jsonl", conversations())
    result = CliRunner().invoke(app, ["init", str(tmp_path / "desk"), "--from-traces", str(log)])
    page = (Path(__file__).parents[2] / "docs" / "traces.md").read_text("utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0].splitlines()
    assert len(shown) == 5
    assert [line for line in shown if line not in result.stdout.splitlines()] == []


def test_personal_data_is_counted_and_the_warning_is_printed(tmp_path: Path) -> None:
    row = {
        "messages": [
            {"role": "user", "content": "mail ann@example.org, card 4111 1111 1111 1111"},
            {"role": "assistant", "content": "done"},
        ],
        "good": True,
    }
    log = write_lines(tmp_path / "log.jsonl", [row, *conversations(20)])
    result = CliRunner().invoke(app, ["init", str(tmp_path / "desk"), "--from-traces", str(log)])
    assert (
        "personal data: 1 conversations contain e-mail addresses, 1 conversations contain card numbers" in result.output
    )


def test_the_environment_that_answers_from_the_log_agrees_with_the_desk(tmp_path: Path) -> None:
    made(pairs(tmp_path), tmp_path / "desk")
    rows = [
        json.loads(line) for line in (tmp_path / "desk" / "fixtures" / "calls.jsonl").read_text("utf-8").splitlines()
    ]
    assert len(rows) > 300
    assert all(row["result"] == Desk().answer(row["tool"], row["arguments"]) for row in rows)


def test_names_of_a_log_do_not_become_code(tmp_path: Path) -> None:
    evil = "x): pass\n    import pathlib; pathlib.Path('ran').touch()\n    #"
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "create_it\n    boom()", "arguments": json.dumps({evil: "1"})},
    }
    row = [
        {"role": "user", "content": "please"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
        {"role": "assistant", "content": "done"},
    ]
    log = write_lines(tmp_path / "log.jsonl", [*([{"messages": row}] * 2), *conversations(20)])
    CliRunner().invoke(app, ["init", str(tmp_path / "desk"), "--from-traces", str(log), "--model", "scratch"])
    source = tmp_path / "desk" / "environment.py"
    if source.exists():  # otherwise the log was refused
        written = source.read_text("utf-8").splitlines()
        assert [
            line
            for line in written
            if ("pathlib.Path('ran')" in line or "boom()" in line) and not line.lstrip().startswith("#")
        ] == []


def test_the_reward_distinguishes_long_numbers_and_ignores_zeros_after_the_point(tmp_path: Path) -> None:
    made(write_lines(tmp_path / "log.jsonl", conversations(40)), tmp_path / "desk", "--model", "scratch")
    reward = load_object("reward:agrees", folder=tmp_path / "desk")
    text = "Your refund for order {} has been issued just now, and {} euros arrive tomorrow."
    logged = text.format("1234567890123", "1200.50")
    assert reward(text.format("1234567890123", "1,200.5"), logged, "hi")
    assert not reward(text.format("1234567890124", "1200.50"), logged, "hi")
