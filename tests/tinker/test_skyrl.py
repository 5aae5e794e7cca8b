"""The learner and the engine on SkyRL's server, through several versions of the package `tinker`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tinker.servers import ROOT, Server
from tests.tinker.whole_runs import LEAVES_SOCKETS, Tolerances, build_settings, check, compare, run_everything, train

SDKS = [one for one in os.environ.get("SPARRING_TEST_TINKER_SDKS", "").split(os.pathsep) if one]
"""Folders with versions of the package. Without them, the installed version is used."""


@pytest.fixture(scope="module", params=SDKS or ["installed"], ids=lambda one: Path(one).name)
def found(request: pytest.FixtureRequest, skyrl: Server) -> dict[str, Any]:
    paths = [str(ROOT), *([] if request.param == "installed" else [str(Path(request.param).absolute())])]
    done = subprocess.run(
        [sys.executable, "-m", "tests.tinker.sdk_session", skyrl.url, str(skyrl.model)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{skyrl.log[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def test_the_division_by_the_sum_of_weights_is_found(found: dict[str, Any]) -> None:
    assert found["formula"] == (
        "each row's loss is divided by the sum of its weights (at least 1e-9), and the sum over the rows is divided by the "
        "number of rows"
    )
    assert found["factor_of_negative"] == pytest.approx(5e8, rel=0.1)


def test_gradients_that_are_not_clipped_and_weights_that_are_restored_are_noticed(found: dict[str, Any]) -> None:
    assert found["clips_gradients"] is False
    assert found["sampling_restores"] is True
    assert found["bounds_ratios"] is True


def test_losses_gradients_and_weights_equal_those_of_the_learner_in_this_process(found: dict[str, Any]) -> None:
    assert [one["loss_fn"] for one in found["steps"]] == ["ppo", "gspo", "importance_sampling", "cispo", "dppo_tv"]
    for one in found["steps"]:
        assert one["loss"][0] == pytest.approx(one["loss"][1], rel=1e-3, abs=1e-5), one
        assert one["grad_norm"][0] == pytest.approx(one["grad_norm"][1], rel=2e-3), one
        assert one["logprob_change"] > 100 * one["logprob_difference"], one
    assert found["weight_difference"] < 1e-4


def test_without_the_plan_a_row_whose_weights_have_a_negative_sum_blows_up_the_gradient(found: dict[str, Any]) -> None:
    exact = found["steps"][0]["grad_norm"][1]
    assert min(found["wrong"]["norms"]) > 1e6 * exact


def test_the_engine_samples_ids_with_their_log_probabilities_and_the_stop_id(found: dict[str, Any]) -> None:
    assert len(found["sampled"]) == 8
    assert found["stopped"] == [found["sampled"][:3], "stop"]
    assert found["sampler_difference"] < 1e-3


def test_a_restored_learner_continues_as_the_one_that_went_on(found: dict[str, Any]) -> None:
    assert found["restored_difference"] < 1e-5


NEAR = Tolerances(loss=1e-3, norm=2e-3, weight=1e-4)


@LEAVES_SOCKETS
@pytest.mark.parametrize("loss_fn", ["ppo", "importance_sampling", "cispo"])
def test_a_run_of_each_loss_takes_the_steps_of_the_learner_in_this_process(
    skyrl: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss_fn: str
) -> None:
    comparison = compare(monkeypatch, skyrl)
    trained = train(build_settings(skyrl, tmp_path, f"algorithm.loss_fn={loss_fn}"))
    assert (trained.step, trained.status) == (2, "completed")
    check(comparison, trained.run, ["cross_entropy"] * 2 + [loss_fn] * 2, NEAR)


@LEAVES_SOCKETS
def test_a_run_whose_server_is_killed_resumes_and_its_adapter_is_exported_and_evaluated(
    skyrl: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_everything(skyrl, compare(monkeypatch, skyrl), tmp_path, monkeypatch, NEAR)
    assert "(compensated); it does not clip gradients; sampling with earlier weights" in capsys.readouterr().err
