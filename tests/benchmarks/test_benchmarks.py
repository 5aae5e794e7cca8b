"""Every benchmark can be run in small, its results have one form, and what pages show of them names commit and command."""

import json
import re
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gateway, ledger, per_turn_bias, train_vs_trl
from benchmarks.__main__ import describe_figures, list_all
from benchmarks.__main__ import main as run_benchmarks
from benchmarks.report import CANNOT_RUN, defects, needs, report
from benchmarks.smoke import RESULTS, results, scripts
from sparring.config import validate
from sparring.errors import ConfigError
from sparring.ledger.writer import GroupCommitWriter

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "recipes").glob("*/README.md"))]
NAMING = [*PAGES, *sorted((ROOT / "docs" / "notebook").glob("*.md")), *sorted(BENCHMARKS.glob("**/README.md"))]
COMMIT = re.compile(r"(?:\b(?:commits?|at|of|landed (?:as|in)) `?|\| (?=\d*[a-f]))([0-9a-f]{7,40})\b")
"""A commit after such a word, or at the start of a cell of a table."""
FIRST_RECIPE = {"evidence": "pointer_chase", "outside": "frozen_lake"}
"""The recipe of a benchmark's overrides if its command names none."""
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
    gone = next((flag for flag in flags if flag not in ("--json", "--smoke") and f'"{flag}"' not in source(name)), None)
    return gone or (unknown_override(words[3:], FIRST_RECIPE[name]) if name in FIRST_RECIPE else None)


def unknown_override(words: Sequence[str], recipe: str) -> str | None:
    """The recipe or the first setting among the positional arguments that does not exist."""
    if words and not words[0].startswith("--") and "=" not in words[0]:
        recipe = words[0]
    file = ROOT / "recipes" / recipe / "recipe.toml"
    if not file.is_file():
        return recipe
    for word in words:
        if "=" in word and not word.startswith("--"):
            try:
                validate(tomllib.loads(file.read_text("utf-8")), [word])
            except ConfigError:
                return word
    return None


@cache
def history() -> frozenset[str]:
    """The commits that this checkout contains."""
    git = ["git", "-C", str(ROOT)]
    try:
        top, shallow, found = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout
            for words in (
                ("rev-parse", "--show-toplevel"),
                ("rev-parse", "--is-shallow-repository"),
                ("rev-list", "HEAD"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is not a git checkout")
    if Path(top.strip()).resolve() != ROOT.resolve():
        pytest.skip("this is an archive inside another checkout")
    if shallow.strip() == "true":
        pytest.skip("the history is not complete here")
    return frozenset(found.split())


def is_ancestor(commit: str) -> bool:
    return any(one.startswith(commit.removesuffix("+")) for one in history())


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
    assert unknown("python -m benchmarks.evidence pointer_jump") == "pointer_jump"
    assert unknown("python -m benchmarks.evidence quickstart warm_start.control_step=2") == "warm_start.control_step=2"
    assert unknown("python -m benchmarks.outside --seeds 0 batch.group_siz=2") == "batch.group_siz=2"
    assert unknown("python -m benchmarks.evidence quickstart warm_start.control_steps=2 --seeds 0") is None
    assert unknown("make no-such-target") == "no-such-target"
    assert unknown("python -m benchmarks.diagnosis.generator --half fresh --branches") is None


@pytest.mark.parametrize("page", NAMING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_commit_that_a_page_names_is_in_the_history(page: Path) -> None:
    named = COMMIT.findall(" ".join(page.read_text("utf-8").split()))
    assert [one for one in named if any(map(str.isdigit, one)) and not is_ancestor(one)] == []


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_the_commit_of_a_stored_result_is_in_the_history(path: Path) -> None:
    assert is_ancestor(json.loads(path.read_text("utf-8"))["commit"])


def test_a_commit_that_is_gone_is_noticed() -> None:
    assert is_ancestor("16393a59")
    assert not is_ancestor("e7bd6239")
    assert COMMIT.findall("commit `e7bd6239`, recorded at 355e571") == ["e7bd6239", "355e571"]
    assert COMMIT.findall("| rules of | | c166938 | 9 of 20 | 1048576 |") == ["c166938"]


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_the_comparison_with_trl_that_a_page_shows_is_the_stored_one(page: str) -> None:
    content = json.loads((RESULTS / "train_vs_trl.json").read_text("utf-8"))
    (text,) = (text for at, name, text in BLOCKS if at == ROOT / page and name == "train_vs_trl")
    assert text.startswith(f"\n{train_vs_trl.markdown(content)}\n")
    assert content["command"] in text


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
    listed = [*re.split(r"^python -m benchmarks\.", output, flags=re.MULTILINE)[1:]]
    assert all(("no stored result" in one) == (not list(results(one.splitlines()[0]))) for one in listed)
    assert "least gain over the strongest control 0.188 (MISSED: at least 0.3)" in output
    assert "least lower bound of it 0.105 (MISSED: at least 0.15)" in output
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


def test_every_missed_target_is_listed_and_other_figures_are_counted() -> None:
    figures = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}
    one = {"figures": figures, "targets": {"b": {"at_most": 2.0}, "d": {"at_least": 4.5}}}
    assert describe_figures(one) == "d 4 (MISSED: at least 4.5); b 2; a 1; 2 more"
    all_missed = {"figures": figures, "targets": {key: {"at_least": 9.0} for key in figures}}
    assert describe_figures(all_missed).count("MISSED") == 5


def test_smoke_runs_that_take_longer_than_their_budget_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for budget, code in (("0.001", 1), ("300", 0)):
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--smoke", "loss_weights", "--budget-seconds", budget])
        assert run_benchmarks() == code
        output = capsys.readouterr().out
        assert "1 benchmarks in" in output
        assert ("FAILED: the smoke tests took" in output) == bool(code)
        assert ("and their budget is 0.001 s. The slowest are loss_weights (" in output) == bool(code)


def test_a_server_that_is_not_the_gateway_and_a_bare_app_that_records_nothing_fail_the_smoke_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Idle:
        def __init__(self, db: sqlite3.Connection) -> None:
            self._writer = GroupCommitWriter(db)
            self.close = self._writer.close

        def submit(self, _: Callable[[sqlite3.Connection], Any]) -> Future[Any]:
            return self._writer.submit(lambda _: None)

    monkeypatch.setattr(sys, "argv", ["gateway", "--smoke"])
    assert gateway.main() == 0
    with monkeypatch.context() as patch:
        patch.setattr(gateway, "serve_gateway", gateway.serve_bare)
        assert gateway.main() == 1
        assert "the side 'gateway' did nothing" in capsys.readouterr().err
    monkeypatch.setattr("sparring.ledger.writer.GroupCommitWriter", Idle)
    assert gateway.main() == 1
    assert "the side 'bare' did nothing" in capsys.readouterr().err


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
        "computed_per_distinct": {"rollout": 1.0, "training": 1.0},
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
