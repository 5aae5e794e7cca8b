"""The whole check: what hangs or dies is reported and survived, exit codes, the JSON document, the page."""

import json
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.checks.running.check_page import page
from sparring.checks.running.check_report import Checked, CheckReport
from sparring.checks.running.run import Options, check_recipe, selected
from sparring.cli import app
from sparring.errors import DataError, UsageError
from sparring.findings import Finding, Severity

HERE = Path(__file__).parent
CLEAN = HERE / "clean" / "library"


def finding(severity: Severity, symptom: str) -> Finding:
    return Finding(
        rule="environment.plays", severity=severity, symptom=symptom, evidence={"text": "<b>&"}, change="c", confirm="d"
    )


@pytest.mark.parametrize(
    ("name", "expected"), [("tool_hangs", "Desk.find(title="), ("tool_ends_process", "exited with exit code 3")]
)
def test_code_that_hangs_or_dies_is_named_and_the_other_rules_still_run(name: str, expected: str) -> None:
    report = check_recipe(HERE / "defects" / name, Options(families=("environment", "budgets")))
    assert expected in report.errors[0].symptom
    assert report.errors[0].rule == "environment.plays"
    assert {one.name for one in report.checked} == {
        one.name for one in selected(Options(families=("environment", "budgets")))
    }


def test_a_file_that_a_run_will_not_have_is_named_and_the_clean_recipe_reads_none() -> None:
    defect, only = (
        tomllib.loads((HERE / "defects" / "reads_hidden_file" / "defect.toml").read_text("utf-8")),
        ("files",),
    )
    (found,) = check_recipe(HERE / "defects" / "reads_hidden_file", Options(families=only)).findings
    assert (found.rule, found.severity) == (defect["rule"], defect["severity"])
    assert defect["message"] in found.symptom
    assert check_recipe(CLEAN, Options(families=only)).findings == ()


def test_a_clean_recipe_gives_exit_code_0_and_its_numbers_as_json() -> None:
    result = CliRunner().invoke(app, ["check", str(CLEAN), "--only", "budgets", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["counts"]["error"], document["counts"]["warning"]) == (0, 0)
    assert document["measured"]["tasks"] == {"train": 40, "validation": 10, "held_out": 10}
    assert document["measured"]["tools"] == ["find", "floor"]


def test_a_report_is_short_in_a_notebook() -> None:
    report = CheckReport.of("r", [finding(Severity.NOTE, "odd"), finding(Severity.ERROR, "wrong")], (), seconds=1.0)
    assert repr(report).splitlines() == [
        "<CheckReport r: 1 error, 0 warnings, 1 note",
        "  error: environment.plays: wrong",
        "  note: environment.plays: odd>",
    ]


def test_the_cost_is_of_the_steps_that_the_tasks_suffice_for() -> None:
    # 40 tasks, played once: ten batches of 4 are the ten steps of the recipe; three batches of 16 are not.
    whole = check_recipe(CLEAN, Options(families=("budgets",))).findings
    short = check_recipe(CLEAN, Options(families=("budgets",), overrides=("batch.global_batch_size=16",))).findings
    assert [(one.evidence["steps"], one.evidence["episodes"]) for one in (*whole, *short)] == [(10, 160), (3, 160)]
    assert "ends after" not in whole[0].symptom
    assert "It ends after 3 of 10 steps: there are no more batches of 16 in 1 pass over 40 tasks" in short[0].symptom


@pytest.mark.parametrize(
    ("option", "expected", "code"),
    [
        (["--reference", "http://localhost:1/v1"], "has no model; write URL#MODEL", 2),
        (["--run", "runs/nowhere"], "--run runs/nowhere contains no trajectories/*.jsonl", 3),
        (["--page", "nowhere/page.html"], "nowhere/page.html cannot be written", 2),
    ],
)
def test_an_option_that_cannot_be_right_is_refused_before_anything_is_played(
    option: list[str], expected: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["check", str(CLEAN), "--only", "budgets", *option])
    assert result.exit_code == code
    assert expected in " ".join(result.output.split())


def test_an_error_is_exit_code_5_and_the_page_is_written_all_the_same(tmp_path: Path) -> None:
    target = tmp_path / "findings.html"
    folder = str(HERE / "defects" / "too_few_turns")
    result = CliRunner().invoke(app, ["check", folder, "--only", "budgets", "--page", str(target)])
    assert result.exit_code == 5
    assert "budgets.max_turns: the expert" in " ".join(result.stdout.split())
    assert "the expert needs 3 turns, but max_turns is 2." in target.read_text("utf-8")


def test_what_cannot_be_loaded_has_the_exit_code_of_its_kind(tmp_path: Path) -> None:
    shutil.copytree(CLEAN, tmp_path / "recipe")
    with pytest.raises(UsageError, match="is not a family of checks"):
        check_recipe(tmp_path / "recipe", Options(families=("weather",)))
    with pytest.raises(UsageError, match="no recipe at"):
        check_recipe(tmp_path / "nothing")
    recipe = tmp_path / "recipe" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('"environment:train_tasks"', '"missing.jsonl"'))
    with pytest.raises(DataError, match="does not exist"):
        check_recipe(tmp_path / "recipe", Options(families=("budgets",)))


def test_findings_are_in_order_of_severity_and_the_page_shows_all_of_them_with_their_markup_escaped() -> None:
    report = CheckReport.of(
        "r",
        [finding(Severity.NOTE, "small"), finding(Severity.ERROR, "large <script>")],
        [Checked(name="environment.plays", state="skipped", reason="because")],
        seconds=1.0,
    )
    assert [one.symptom for one in report.findings] == ["large <script>", "small"]
    assert [one.symptom for one in report.errors] == ["large <script>"]

    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: set[str] = set()
            self.text = ""

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.add(tag)
            assert not {name for name, _ in attrs} & {"src", "href", "onclick"}

        def handle_data(self, data: str) -> None:
            self.text += data

    reader = Reader()
    reader.feed(page(report))
    assert not reader.tags & {"script", "link", "img", "b "}
    assert all(text in reader.text for text in ("large <script>", "small", '"<b>&"', "skipped: because"))
