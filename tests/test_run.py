"""A run from Python: its numbers, its episodes and its curves are those of its files."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sparring import MultiTurnRLTrainer, Run
from sparring.errors import DataError, ServiceError, UsageError
from sparring.tracking import LocalTracker
from sparring.types import TrajectoryGroup
from tests.report.stored_run import StoredRun, evaluation, held_out
from tests.tracking.test_spans import PLAYED

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of three steps that was resumed after the first one, with a finding."""
    folder = tmp_path / "shop-001"
    folder.mkdir()
    (folder / "run.toml").touch()
    (folder / "status.json").write_text(json.dumps({"status": "completed", "step": 3}))
    tracker = LocalTracker(folder)
    tracker.log_metrics(0, {"val/score/mean": 0.25})
    for step in (1, 2):
        tracker.log_metrics(step, {"rollout/reward/mean": 0.0, "rollout/score/mean": 0.5})
    tracker.log_metrics(1, {"training/resumed": 1.0})
    for step in (2, 3):
        numbers = {"rollout/reward/mean": step / 4, "rollout/outcome/finished": 1.0, "rollout/outcome/max_turns": 0.0}
        tracker.log_metrics(step, numbers)
        played = replace(PLAYED, id=f"train/{step}/t1/0.0")
        tracker.log_groups(step, [TrajectoryGroup(task=PLAYED.task, trajectories=(played,))], split="train")
    unrewarded = replace(PLAYED, id="held_out/1/t1/0.0", reward=None, score=None, score_parts={})
    tracker.log_groups(1, [TrajectoryGroup(task=PLAYED.task, trajectories=(unrewarded,))], split="held_out")
    tracker.log_finding({"rule": "a.b", "severity": "error", "symptom": "Bad & worse.", "change": "Fix it.", "step": 2,
                         "evidence": {}, "confirm": ""})  # fmt: skip
    tracker.close()
    return Run(folder)


def test_metrics_have_a_row_for_each_step_with_the_last_values_of_a_repeated_step(run: Run) -> None:
    frame = run.metrics()
    assert (frame.index.name, list(frame.index)) == ("step", [0, 1, 2, 3])
    assert frame["rollout/reward/mean"].dropna().to_dict() == {1: 0.0, 2: 0.5, 3: 0.75}
    assert frame.loc[0, "val/score/mean"] == 0.25


def test_episodes_have_a_row_each_with_rewards_and_scores_by_part(run: Run) -> None:
    frame = run.episodes()
    assert list(frame["id"]) == ["train/2/t1/0.0", "train/3/t1/0.0", "held_out/1/t1/0.0"]
    first = frame.iloc[0]
    assert (first["split"], first["step"], first["task"], first["outcome"]) == ("train", 2, "t1", "finished")
    assert (first["reward"], first["reward/right"], first["score"], first["score/format"]) == (1.0, 1.0, 0.5, 0.5)
    assert (first["turns"], first["prompt_tokens"], first["sampled_tokens"]) == (2, 6, 4)
    assert first["messages"][-1]["content"] == "4"
    assert frame["reward"].isna().tolist() == [False, False, True]
    assert list(run.episodes(split="train", steps=[3])["id"]) == ["train/3/t1/0.0"]


def test_a_run_without_episodes_has_an_empty_frame_with_columns(run: Run) -> None:
    frame = run.episodes(split="validation")
    assert len(frame) == 0
    assert {"reward", "messages"} <= set(frame.columns)
    with pytest.raises(UsageError, match="choose from train, validation, held_out"):
        run.episodes(split="val")


def test_without_pandas_the_error_has_the_command_that_installs_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for read in (run.metrics, run.episodes):
        with pytest.raises(ServiceError, match=r"pip install 'sparring\[frames\]'"):
            read()
    assert "reward" in run.plot("reward").svg  # which needs no other library


def test_a_plot_has_the_curves_the_resumed_steps_and_the_findings(run: Run, tmp_path: Path) -> None:
    file = run.plot("reward", "rollout/outcome").save(tmp_path / "reward.svg")
    root = ElementTree.parse(file).getroot()
    titles = [one.text for one in root.iter(f"{SVG}title")]
    assert "reward after step 3: 0.75" in titles
    assert "rollout/outcome/max_turns after step 2: 0" in titles
    assert "the run was resumed after step 1" in titles
    assert "a.b after step 2: Bad & worse." in titles
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert "shop-001: reward, rollout/outcome/finished, rollout/outcome/max_turns" in texts
    assert run.plot()._repr_html_().startswith("<svg")


def test_a_plot_of_what_the_run_does_not_have_is_an_error_with_the_nearest_names(run: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no metric 'rewrad'; the nearest are reward"):
        run.plot("rewrad")
    with pytest.raises(DataError, match="no metric 'training/loss'"):
        run.plot("loss")
    with pytest.raises(UsageError, match="a plot shows 5"):
        run.plot("rollout", "val/score/mean", "training/resumed")
    with pytest.raises(UsageError, match=r"name it .*reward\.svg"):
        run.plot().save(tmp_path / "reward.png")


def test_a_run_is_short_in_a_terminal_and_a_page_in_a_notebook(run: Run) -> None:
    assert repr(run) == f"<Run {run.path}: completed after step 3, reward 0.750, score 0.500>"
    shown = run._repr_html_()
    assert "completed after step 3" in shown
    assert "<svg" in shown


def test_evaluations_are_tables_in_a_notebook(tmp_path: Path) -> None:
    stored = StoredRun(tmp_path)
    before, after = held_out("base-0", [0.0] * 25), held_out("tuned-0", [1.0] * 25)
    stored.evaluated((evaluation("base", before), before), (evaluation("<tuned>", after), after))
    shown = Run(stored.path)._repr_html_()
    assert shown.count("<table>") == 2  # the policies, and the difference between them
    assert "&lt;tuned&gt;" in shown
    assert "<tuned>" not in shown
    one = evaluation("base", before)._repr_html_()
    assert (one.count("<table>"), "base" in one) == (1, True)


def test_a_trainer_without_a_run_reports_that(tmp_path: Path) -> None:
    trainer = MultiTurnRLTrainer(Path(__file__).parents[1] / "recipes" / "pointer_chase", quiet=True)
    with pytest.raises(UsageError, match="no run yet"):
        _ = trainer.run
