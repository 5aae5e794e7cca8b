"""A resumed run reports what has changed since it was trained, and continues with it only if the user allows it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.errors import UsageError
from sparring.trainer import MultiTurnRLTrainer

TINY = Path(__file__).parents[1] / "faults" / "recipe"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Trained for one step."""
    recipe = shutil.copytree(TINY, tmp_path / "recipe", ignore=shutil.ignore_patterns("__pycache__"))
    overrides = [f"run.runs_dir={tmp_path}", "schedule.max_steps=1"]
    with MultiTurnRLTrainer(recipe, overrides=overrides, name="run", check=False, quiet=True) as trainer:
        trainer.train()
    return tmp_path / "run"


def resumed(run: Path, *overrides: str, allow: tuple[str, ...] = ()) -> int:
    """The last step."""
    with MultiTurnRLTrainer.attach(run, overrides=overrides) as trainer:
        result = trainer.train(resume=True, allow_changed=allow)
        assert result is not None
        return result.step


def manifest(run: Path) -> dict:
    return json.loads((run / "manifest.json").read_text())


@pytest.mark.parametrize(
    ("before", "after", "part", "message"),
    [
        ("torch.manual_seed(seed)", "torch.manual_seed(seed + 1)", "model", "model was "),
        ("ByteLevel.alphabet())", "ByteLevel.alphabet())[::-1]", "tokenizer", "tokenizer was "),
        ("{% if add_generation_prompt %}", "{% if add_generation_prompt and true %}", "template", "template was "),
        # Eight tasks, of which two are split off as held out.
        ("range(8)", "range(9)", "data", "train was 6 tasks ("),
        ("number}!", "number}?!", "data", "validation was 2 tasks ("),
    ],
)
def test_another_model_tokenizer_template_or_dataset_is_named_and_refused_until_it_is_allowed(
    run: Path, before: str, after: str, part: str, message: str
) -> None:
    code = (run / "recipe" / "tiny.py").read_text()
    assert code.count(before) == 1
    (run / "recipe" / "tiny.py").write_text(code.replace(before, after))
    was = manifest(run)["contents"]
    with pytest.raises(UsageError) as refused:
        resumed(run, "schedule.max_steps=2")
    assert message in str(refused.value)
    assert "tiny.py was " in str(refused.value)
    assert f"--allow-changed {part},recipe" in str(refused.value)
    # Refused, nothing was touched: how the run stands, and what it is known to be made of.
    assert manifest(run)["contents"] == was
    with pytest.raises(UsageError, match=r"--allow-changed recipe\.$"):
        resumed(run, "schedule.max_steps=2", allow=(part,))
    assert resumed(run, "schedule.max_steps=2", allow=(part, "recipe")) == 2
    (entry,) = manifest(run)["resumed"]
    assert {key.partition(".")[0] for key in entry["changes"]} == {part, "files", "config"}
    # What was allowed is what the run is made of now.
    assert resumed(run, "schedule.max_steps=2") == 2


def test_a_template_that_contradicts_itself_is_reported_at_the_start_and_is_on_record(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert manifest(run)["template_problem"] is None
    code = (run / "recipe" / "tiny.py").read_text()
    begins = "{% if add_generation_prompt %}"
    (run / "recipe" / "tiny.py").write_text(code.replace(begins, begins.replace("add_generation_prompt", "false")))
    assert resumed(run, "schedule.max_steps=2", allow=("template", "recipe")) == 2
    assert (
        "the chat template contradicts itself: it starts the generation prompt with no special token"
        in capsys.readouterr().err
    )
    assert "no special token" in manifest(run)["template_problem"]


def test_settings_that_are_given_are_changed_and_those_that_are_left_out_again_are_asked_for(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resumed(run, "schedule.max_steps=2") == 2
    assert "the run continues with changes: schedule.max_steps was 1, is 2." in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"schedule\.max_steps was 2, is 1.*\(add schedule\.max_steps=2\)"):
        resumed(run)
    assert resumed(run, "schedule.max_steps=3") == 3
    assert resumed(run, allow=("recipe",)) == 3
    assert [entry["changes"] for entry in manifest(run)["resumed"]] == [
        {"config.schedule.max_steps": [1, 2]},
        {"config.schedule.max_steps": [2, 3]},
        {"config.schedule.max_steps": [3, 1]},
    ]


def test_another_number_of_threads_or_version_is_a_note(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = manifest(run)
    content["hardware"]["num_threads"] = 7
    content["hardware"]["memory_bytes"] = 1
    content["versions"]["torch"] = "1.0"
    (run / "manifest.json").write_text(json.dumps(content))
    capsys.readouterr()
    assert resumed(run) == 1
    errors = capsys.readouterr().err
    assert "num_threads was 7, is 1; torch was '1.0', is " in errors
    assert "its results may differ in the last bits" in errors
    assert "memory_bytes" not in errors
    # Reported once: the run is made of that now.
    assert resumed(run) == 1
    assert "bit for bit" not in capsys.readouterr().err


def test_a_part_that_is_none_is_refused_with_the_one_that_was_meant(run: Path) -> None:
    refused = CliRunner().invoke(
        app, ["train", "--resume", str(run), "--no-supervise", "--allow-changed", "data,tokeniser"]
    )
    assert refused.exit_code == 2
    assert "'tokeniser' is not a known part; did you mean 'tokenizer'?" in refused.output
    alone = CliRunner().invoke(app, ["train", str(TINY), "--allow-changed", "data"])
    assert alone.exit_code == 2
    assert "give it with --resume RUN" in alone.output
