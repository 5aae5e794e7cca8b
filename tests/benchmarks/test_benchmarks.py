"""Every benchmark can be run in small, its results have one form, and what pages show of them names commit and command."""

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ledger, per_turn_bias, train_vs_trl
from benchmarks.__main__ import list_all
from benchmarks.report import CANNOT_RUN, defects, needs, report
from benchmarks.smoke import RESULTS, results, scripts
from sparring.config import validate

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"<!-- measured:(.+?) -->(.+?)<!-- /measured:\1 -->", re.DOTALL)
COMMAND = re.compile(r"`((?:python -m benchmarks|make |sparring train )[^`]*)`")
BLOCKS = [(page, name, text) for page in PAGES for name, text in BLOCK.findall(page.read_text("utf-8"))]
WHOLE = {
    "name": "n",
    "command": "python -m benchmarks.n",
    "commit": None,
    "date": "2026-01-02",
    "machine": "2 cores",
    "versions": {},
    "smoke": True,
    "sides": {"ours": 1, "theirs": 2},
    "rows": [{"a": 1}],
    "figures": {"f": 0.5},
    "targets": {},
}


def source(name: str) -> str:
    path = BENCHMARKS.joinpath(*name.split("."))
    return (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")


def unknown(command: str) -> str | None:
    """What of a command does not exist."""
    words = command.split()
    if words[0] == "make":
        return None if re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE) else words[1]
    if words[0] == "sparring":
        recipe = ROOT / words[2]
        if not recipe.is_file():
            return words[2]
        tables = tomllib.loads(recipe.read_text("utf-8"))
        validate({section: table for section, table in tables.items() if section != "warm_start"}, words[3:])
        return None
    name = words[2].removeprefix("benchmarks.")
    if name not in scripts():
        return words[2]
    flags = [word for word in words[3:] if word.startswith("--")]
    return next((flag for flag in flags if flag not in ("--json", "--smoke") and f'"{flag}"' not in source(name)), None)


@pytest.mark.parametrize(("page", "name", "text"), BLOCKS, ids=lambda one: getattr(one, "stem", str(one)[:20]))
def test_what_a_page_shows_as_measured_names_its_commit_and_a_command_that_exists(
    page: Path, name: str, text: str
) -> None:
    block = " ".join(text.split())
    commits, commands = re.findall(r"commit `?([0-9a-f]{7,40})\b", block), COMMAND.findall(block)
    assert commits, (
        f"{page.name}: the block {name} names no commit; end it with: Recorded at commit 1234567, DATE: `COMMAND`."
    )
    assert commands, f"{page.name}: the block {name} names no command"
    assert [missing for one in commands if (missing := unknown(one))] == []
    stored = RESULTS / f"{name}.json"
    if stored.exists():
        assert json.loads(stored.read_text("utf-8"))["commit"] in commits


def test_a_command_that_is_gone_is_noticed() -> None:
    assert unknown("python -m benchmarks.pointer_chase") == "benchmarks.pointer_chase"
    assert unknown("python -m benchmarks.train_vs_trl --bounds 2") == "--bounds"
    assert unknown("make no-such-target") == "no-such-target"
    assert unknown("python -m benchmarks.diagnosis.generator --half fresh --branches") is None


@pytest.mark.parametrize("name", scripts())
def test_every_benchmark_runs_in_small_and_counts_the_work_of_its_sides(name: str) -> None:
    assert "options(__doc__)" in source(name) or '"--smoke"' in source(name)
    assert "sides=" in source(name)
    assert "smoke=" in source(name)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_stored_result_is_whole_and_of_a_benchmark_that_exists(path: Path) -> None:
    content = json.loads(path.read_text("utf-8"))
    assert list(defects(content)) == []
    assert unknown(content["command"]) is None
    assert not content["smoke"]
    assert not re.search(r"/(tmp|home|root|work)\b", path.read_text("utf-8"))


def test_the_list_has_every_benchmark_with_its_last_figures(capsys: pytest.CaptureFixture[str]) -> None:
    list_all()
    output = capsys.readouterr().out
    assert all(f"python -m benchmarks.{name}\n" in output for name in scripts())
    assert "2 cores, AMD EPYC, AVX2: " in output
    assert next(results("train_vs_trl"))["commit"] in output


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({}, None),
        ({"sides": {"ours": 1, "theirs": 0}}, "'theirs' did nothing"),
        ({"sides": {}}, "no sides"),
        ({"figures": {"f": float("nan")}}, "'f' is nan"),
        ({"figures": {}}, "nothing was measured"),
        ({"machine": {"cores": 2}}, "machine is"),
        ({"more": 1}, "unknown fields more"),
        ({"targets": {"g": {"at_least": 1.0}}}, "a target without a figure: 'g'"),
    ],
)
def test_a_result_shows_what_is_wrong_with_it(changed: Mapping[str, Any], named: str | None) -> None:
    found = list(defects({**WHOLE, **changed}))
    assert found == [] if named is None else any(named in one for one in found)


def test_targets_do_not_count_in_small_but_sides_do() -> None:
    def code(side: float, *, smoke: bool) -> int:
        return report(
            "n",
            [{"a": 1}],
            figures={"f": 0.0},
            targets={"f": {"at_least": 1.0}},
            path=None,
            sides={"s": side},
            smoke=smoke,
        )

    assert (code(1, smoke=True), code(1, smoke=False), code(0, smoke=True), code(0, smoke=False)) == (0, 5, 1, 1)


def test_what_is_not_here_has_an_exit_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        needs("a GPU")
    assert raised.value.code == CANNOT_RUN
    assert capsys.readouterr().out == "needs a GPU\n"


def test_a_verification_that_does_nothing_fails_the_smoke_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ledger", "--smoke"])
    assert ledger.main() == 0
    monkeypatch.setattr(ledger, "verify", lambda _: 0)
    assert ledger.main() == 1
    assert "the side 'verify' did nothing" in capsys.readouterr().err


def test_an_estimator_that_does_nothing_fails_the_smoke_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["per_turn_bias", "--smoke"])
    assert per_turn_bias.main() == 0
    stub = dict(per_turn_bias.ADVANTAGES)
    stub["monte_carlo"] = lambda groups, **_: [[[0.0] * len(one.turn_rewards) for one in group] for group in groups]
    monkeypatch.setattr(per_turn_bias, "ADVANTAGES", stub)
    assert per_turn_bias.main() == 1
    assert "the side 'monte_carlo' did nothing" in capsys.readouterr().err


def test_a_side_of_the_comparison_with_trl_that_does_nothing_fails_the_smoke_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: dict[str, Any] = {
        "num_trajectories": 4,
        "step_seconds": [1.0],
        "num_sampled_tokens": 24,
        "num_trained_tokens": 24,
        "num_computed_tokens": 99,
        "num_turns": [1, 1, 1, 1],
        "prompts": [[1], [1], [2], [2]],
        "num_adapter_parameters": 9,
        "precision": "fp32",
        "peak_memory_gib": 1.0,
    }
    idle = {**played, "num_sampled_tokens": 0, "num_trained_tokens": 0}
    monkeypatch.setattr(sys, "argv", ["train_vs_trl", "--smoke"])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    monkeypatch.setattr(train_vs_trl, "random_model", lambda folder: folder)
    monkeypatch.setattr(train_vs_trl, "measure", lambda *_: played)
    assert train_vs_trl.main() == 0
    monkeypatch.setattr(train_vs_trl, "measure", lambda side, *_: idle if side == "TRL" else played)
    assert train_vs_trl.main() == 1
    assert "the side 'TRL, num_sampled_tokens' did nothing" in capsys.readouterr().err
