"""The real loop on a real model that must learn: warm start, RL, held-out evaluation, with real sessions and tools."""

from pathlib import Path

import pytest

from sparring.evaluator import MultiTurnRLEvaluator
from sparring.ledger import Ledger
from sparring.trainer import MultiTurnRLTrainer

RECIPE = Path(__file__).parents[2] / "recipes" / "pointer_chase" / "recipe.toml"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("max_steps_off_policy", [0, 2])
def test_pointer_chase_learns_what_the_demonstrations_do_not_teach(tmp_path: Path, max_steps_off_policy: int) -> None:
    overrides = [
        f"run.runs_dir={tmp_path}",
        f"rollout.max_steps_off_policy={max_steps_off_policy}",
        # Two thirds of the steps of the recipe, and one episode of each task, show it.
        "schedule.max_steps=20",
        "schedule.val_every=0",
        "evaluation.eval_group_size=1",
    ]
    trainer = MultiTurnRLTrainer(RECIPE, overrides=overrides, quiet=True, check=False)
    result = trainer.train()
    report = MultiTurnRLEvaluator(trainer, policies=["warm_start", "tuned"], temperatures=[1.0]).evaluate()
    warm, tuned = report.evaluations
    gain = next(one for one in report.comparisons if (one.before, one.after) == (warm.label, tuned.label))

    assert result is not None
    assert result.status == "completed"
    # What the log teaches: 0.15 are right.
    assert warm.success.mean <= 0.35
    assert tuned.success.mean >= 0.70
    assert gain.difference.low > 0.15
    with Ledger(result.run / "ledger.sqlite") as ledger:
        assert ledger.verify() == []
        # Every planned rollout of training ended as trained or discarded: nothing is left over after a completed run.
        counts = ledger.counts("train")
        assert counts["trained"] + counts["discarded"] == counts["planned_total"]
        assert counts["trained"] == result.step * 16 * 8
