"""What a run's folder contains: steps that were played again, files cut off by a crash, evaluations of another format."""

import json
from pathlib import Path

import pytest

from sparring.errors import DataError
from sparring.report.reading import read_run
from sparring.run_folders.stored import RESUMED
from tests.report.stored_run import StoredRun, evaluation, finding, held_out


def test_steps_that_were_played_again_count_once_and_the_resumption_is_known(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.log({1: {"a": 1.0}, 2: {"a": 2.0}, 3: {"a": 3.0}})
    # From the checkpoint of step 1, whose validation is played once more and whose own numbers stay.
    run.log({1: {RESUMED: 1.0}})
    run.log({1: {"val/a": 5.0}})
    run.log({2: {"a": 20.0}})
    record = read_run(run.path)
    assert record.series("a") == [(1, 1.0), (2, 20.0)]
    assert record.resumed_after == (1,)
    assert record.series("val/a") == [(1, 5.0)]
    assert (record.late("a"), record.total("a"), record.late("b")) == (10.5, 21.0, None)


def test_a_validation_after_a_step_joins_its_line_and_is_no_resumption(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.log({1: {"a": 1.0}})
    run.log({1: {"val/a": 2.0}})
    record = read_run(run.path)
    assert record.metrics == {1: {"a": 1.0, "val/a": 2.0}}
    assert record.resumed_after == ()


def test_half_a_line_at_the_end_is_passed_over_and_one_in_the_middle_is_an_error(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.log({1: {"a": 1.0}}, findings=[finding()])
    for name in ("metrics.jsonl", "findings.jsonl"):
        with (run.path / name).open("a") as file:
            file.write('{"step": 2, "ti')
    record = read_run(run.path)
    assert (list(record.metrics), len(record.findings)) == ([1], 1)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('\n{"step": 3, "metrics": {}}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2"):
        read_run(run.path)


def test_an_evaluation_of_another_format_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.validated(0, evaluation("step 0", held_out("a", [1.0])))
    (run.path / "evaluations" / "validation-2.json").write_text(json.dumps({"format": 1}))
    record = read_run(run.path)
    assert list(record.validations) == [0]
    assert "format 1" in record.unread[0]


def test_a_finding_that_a_resumed_run_reported_again_is_one(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.log(findings=[finding(step=2), finding(step=2), finding(step=3)])
    assert [one.step for one in read_run(run.path).findings] == [2, 3]
