"""A run whose metrics are not those of today is diagnosed by the rules that can read it."""

from dataclasses import replace

from sparring.diagnosis.diagnose import diagnose
from sparring.run_folders.history import History
from tests.diagnosis.runs import run


def test_metrics_that_a_run_does_not_have_cost_the_findings_that_need_them() -> None:
    whole = run(0.5, steps=20)
    history = History()
    for one in whole.history.steps:
        history._steps.append(replace(one, metrics={"rollout/reward/mean": one.metrics["rollout/reward/mean"]}))  # pyright: ignore[reportPrivateUsage]
    assert diagnose("run", replace(whole, history=history)).step == 20
