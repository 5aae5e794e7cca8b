"""TensorBoard's own reader finds in the event file what the run folder has, each step once, whatever happened."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparring.tracking.delivery import Record, deliver
from sparring.tracking.exporter import Exporter
from sparring.tracking.local import LocalTracker
from sparring.tracking.services import tensorboard
from sparring.tracking.tensorboard_receiver import FOLDER, TensorboardReceiver
from tests.tracking.stored import log_finding, log_step, started_run


def write(run: Path) -> None:
    """Deliver in this process what is not in the event file yet."""
    messages: list[str] = []
    is_complete = deliver(
        run,
        TensorboardReceiver(run),
        Record.read(run / "tensorboard.json", "tensorboard"),
        is_over=lambda: True,
        wait=lambda _: None,
        report=messages.append,
    )
    assert (is_complete, messages) == (True, [])


def logged(path: Path, *steps: int) -> Path:
    run = path if path.exists() else started_run(path)
    tracker = LocalTracker(run, clock=lambda: 2000.0)
    for step in steps:
        log_step(tracker, step)
    tracker.close()
    return run


def read(run: Path) -> EventAccumulator:
    events = EventAccumulator(str(run / FOLDER), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def rewards(run: Path) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in read(run).Scalars("rollout/reward/mean")]


def text_of(events: EventAccumulator, tag: str) -> list[tuple[int, str]]:
    return [(one.step, one.tensor_proto.string_val[0].decode()) for one in events.Tensors(tag)]


def event_file(run: Path) -> Path:
    (file,) = (run / FOLDER).iterdir()
    return file


def test_metrics_settings_findings_and_episodes_are_in_the_event_file(tmp_path: Path) -> None:
    run = logged(tmp_path / "run", 1, 2)
    tracker = LocalTracker(run)
    log_finding(tracker, 2)
    tracker.close()
    assert Exporter(run, tensorboard()).finish(120.0)
    events = read(run)
    # NaN is left out: the metric `kl` has no number.
    assert sorted(events.Tags()["scalars"]) == ["rollout/reward/mean", "tool called @x"]
    found = [(one.wall_time, one.step, one.value) for one in events.Scalars("rollout/reward/mean")]
    assert found == [(2000.0, 1, 0.5), (2000.0, 2, 1.0)]
    assert text_of(events, "findings/a.b") == [(2, "**error**: Bad. Fix it.")]
    assert "| run.seed | `3` |" in text_of(events, "settings")[0][1]
    episodes = text_of(events, "episodes/train 2")
    assert [step for step, _ in episodes] == [1, 2]
    assert "train/2/t1/1.0: finished, reward 1, score 0.5" in episodes[1][1]
    assert '    get({"key": 1})' in episodes[1][1]
    assert events.SummaryMetadata("_hparams_/session_start_info").plugin_data.plugin_name == "hparams"


def test_what_a_killed_process_wrote_after_its_last_record_is_written_again_with_the_same_bytes(tmp_path: Path) -> None:
    run = logged(tmp_path / "run", 1)
    write(run)
    record = (run / "tensorboard.json").read_text()
    logged(run, 2)
    write(run)
    complete = event_file(run).read_bytes()
    (run / "tensorboard.json").write_text(record)  # as if the process was killed before its next record
    event_file(run).write_bytes(complete[:-7])  # and in the middle of an event
    write(run)
    assert event_file(run).read_bytes() == complete
    assert rewards(run) == [(1, 0.5), (2, 1.0)]


@pytest.mark.parametrize("damage", ["file", "folder", "cut"])
def test_an_event_file_that_was_deleted_or_shortened_is_written_anew(tmp_path: Path, damage: str) -> None:
    run = logged(tmp_path / "run", 1, 2)
    write(run)
    complete = event_file(run).read_bytes()
    match damage:
        case "file":
            event_file(run).unlink()
        case "folder":
            shutil.rmtree(run / FOLDER)
        case "cut":
            event_file(run).write_bytes(complete[:40])
    write(run)
    assert event_file(run).read_bytes() == complete


def test_steps_that_a_resumed_run_repeats_replace_those_of_the_first_attempt(tmp_path: Path) -> None:
    run = logged(tmp_path / "run", 1, 2, 3)
    write(run)
    tracker = LocalTracker(run)
    tracker.log_metrics(1, {"training/resumed": 1.0})
    for step in (2, 3, 4):
        tracker.log_metrics(step, {"rollout/reward/mean": 9.0 + step})
    tracker.close()
    write(run)
    assert rewards(run) == [(1, 0.5), (2, 11.0), (3, 12.0), (4, 13.0)]


def test_settings_are_written_again_only_if_they_change(tmp_path: Path) -> None:
    run = logged(tmp_path / "run", 1)
    write(run)
    manifest: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    for content in (manifest | {"checked": []}, manifest | {"config": {"run": {"seed": 4}}}):
        (run / "manifest.json").write_text(json.dumps(content))
        write(run)
    settings = text_of(read(run), "settings")
    assert [("`3`" in text, "`4`" in text) for _, text in settings] == [(True, False), (False, True)]


def test_secrets_are_masked_in_the_event_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_API_KEY", "canary-4f1b")
    run = logged(tmp_path / "run", 1)
    content = {"created": 1000.0, "config": {"run": {"name": "canary-4f1b"}}}
    (run / "manifest.json").write_text(json.dumps(content))
    tracker = LocalTracker(run)
    tracker.log_metrics(2, {"a": 1.0})
    tracker.close()
    (run / "findings.jsonl").write_text(
        json.dumps({"rule": "a", "severity": "note", "symptom": "canary-4f1b", "change": ""}) + "\n"
    )
    write(run)
    assert b"canary-4f1b" not in event_file(run).read_bytes()
    assert text_of(read(run), "findings/a") == [(0, "**note**: *** ")]
