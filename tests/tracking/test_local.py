"""Local files hold everything, whatever the content, and survive a process that died."""

import json
import math
from pathlib import Path

import pytest

from sparring.run_folders.encode import encode
from sparring.tracking import LocalTracker
from sparring.types import Json
from tests.tracking.builders import GROUP


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_metrics_are_one_line_a_step_and_nan_becomes_null(tmp_path: Path) -> None:
    tracker = LocalTracker(tmp_path, clock=lambda: 12.5)
    tracker.log_metrics(1, {"reward": 0.5, "kl": float("nan")})
    tracker.log_metrics(2, {"reward": 1.0})
    tracker.close()
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 1, "time": 12.5, "metrics": {"reward": 0.5, "kl": None}},
        {"step": 2, "time": 12.5, "metrics": {"reward": 1.0}},
    ]


def test_a_trajectory_is_stored_token_for_token_with_what_it_earned(tmp_path: Path) -> None:
    tracker = LocalTracker(tmp_path)
    tracker.log_groups(4, [GROUP], split="train")
    tracker.close()
    (stored,) = lines(tmp_path / "trajectories" / "train-4.jsonl")
    assert stored["id"] == "train/0/t1/0.0"
    assert stored["task"]["fields"] == {"answer": 4}
    assert stored["messages"][-1] == {"role": "assistant", "content": "4"}
    assert stored["outcome"] == "finished"
    assert (stored["reward"]["total"], stored["reward"]["components"], stored["score"]) == (1.0, {"right": 1.0}, 0.5)
    (turn,) = stored["turns"]
    assert turn["prompt_ids"] == [1, 2, 3]
    assert turn["token_ids"] == [4, 5]
    assert turn["sampled_logprobs"] == [-0.5, -0.25]
    assert turn["versions"] == [[3, 1], [4, 1]]
    assert turn["temperature"] == 0.5


def test_the_environments_own_log_is_stored_apart_even_when_it_is_not_json(tmp_path: Path) -> None:
    tracker = LocalTracker(tmp_path)
    tracker.log_groups(4, [GROUP], split="validation")
    tracker.close()
    first, second = lines(tmp_path / "environment" / "validation-4.jsonl")
    assert (first["trajectory_id"], first["task_id"], first["index"]) == ("train/0/t1/0.0", "t1", 0)
    assert first["transition"] == {"tool": "get", "result": "?"}
    assert second["transition"] == {"tool": "put", "result": "<class 'object'>"}


def test_findings_and_artifacts_are_written(tmp_path: Path) -> None:
    tracker = LocalTracker(tmp_path, clock=lambda: 1.0)
    tracker.log_finding({"kind": "reward hack"})
    tracker.log_artifact("evaluations/validation-0.json", {"score": 1})
    tracker.close()
    assert lines(tmp_path / "findings.jsonl") == [{"time": 1.0, "kind": "reward hack"}]
    assert json.loads((tmp_path / "evaluations" / "validation-0.json").read_text()) == {"score": 1}


@pytest.mark.parametrize("name", ["../outside.json", "/etc/outside.json", "."])
def test_an_artifact_cannot_leave_the_run(tmp_path: Path, name: str) -> None:
    tracker = LocalTracker(tmp_path / "run")
    with pytest.raises(ValueError, match="points outside the run folder"):
        tracker.log_artifact(name, {})
    tracker.close()


def test_half_a_line_of_a_killed_process_is_dropped_before_appending(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st')
    tracker = LocalTracker(tmp_path, clock=lambda: 0.0)
    tracker.log_metrics(2, {})
    tracker.close()
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2]


def test_a_step_that_a_resumed_run_plays_again_replaces_its_file(tmp_path: Path) -> None:
    for _ in range(2):
        tracker = LocalTracker(tmp_path)
        tracker.log_groups(1, [GROUP], split="train")
        tracker.close()
    assert len(lines(tmp_path / "trajectories" / "train-1.jsonl")) == 1


def test_a_disk_that_refuses_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = LocalTracker(tmp_path)
    (tmp_path / "metrics.jsonl").mkdir()
    tracker.log_metrics(1, {})
    tracker.log_metrics(2, {})
    tracker.log_finding({"kind": "still written"})
    tracker.close()
    (record,) = caplog.records
    assert "local files failed (IsADirectoryError" in record.message
    assert len(lines(tmp_path / "findings.jsonl")) == 1


def test_what_is_nested_too_deeply_is_written_as_far_as_it_goes() -> None:
    nested: Json = "core"
    for _ in range(300):
        nested = [nested]
    assert encode({"a": nested}) == b'{"a":' + b"[" * 199 + b'"..."' + b"]" * 199 + b"}"


def test_integers_beyond_64_bits_and_foreign_keys_are_encoded() -> None:
    assert json.loads(encode({"n": 2**70, "k": {3: (1, 2)}})) == {"n": 2**70, "k": {"3": [1, 2]}}
    assert json.loads(encode([10**9999, 2**70, math.nan, "\ud800"])) == [hex(10**9999), 2**70, None, "?"]
