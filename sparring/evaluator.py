"""MultiTurnRLEvaluator: what a policy does on held-out tasks, beside the policies it came from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

from sparring.errors import UsageError
from sparring.evaluation.evaluation import EvaluationReport, compare
from sparring.trainer import WARM_START, MultiTurnRLTrainer
from sparring.training import checkpoints
from sparring.types import Weights


@final
class MultiTurnRLEvaluator:
    """Evaluates a trainer's or a run folder's policies: base, warm start if there is one, tuned.

        report = MultiTurnRLEvaluator(model="runs/quickstart-001").evaluate()
        report.evaluations[-1].success.mean

    All play the same tasks with the same seeds, judged by the recipe's scorer, so differences are paired by task.
    """

    def __init__(
        self, model: MultiTurnRLTrainer | str | Path, *, overrides: Sequence[str] = (), evaluate_base_model: bool = True
    ) -> None:
        """`overrides` change the run's recipe, e.g. `evaluation.eval_temperature=0.7`."""
        if isinstance(model, MultiTurnRLTrainer):
            if overrides:
                raise UsageError(
                    "overrides belong to the trainer that was given; make it with them, or give its run folder."
                )
            self.trainer = model
        else:
            self.trainer = MultiTurnRLTrainer.attach(model, overrides=overrides)
        self._evaluate_base_model = evaluate_base_model

    def policies(self) -> dict[str, Weights]:
        """The run's policies by name, in the order they were made. Raises DataError when nothing was saved."""
        parts, folder = self.trainer.parts, self.trainer.folder
        assert folder is not None
        named: dict[str, Weights] = {}
        if self._evaluate_base_model:
            named["base"] = parts.initial_weights
            if (folder.checkpoints / WARM_START).is_dir():
                named["warm start"] = checkpoints.load_weights(folder.checkpoints / WARM_START, parts.policy)
        return named | {"tuned": checkpoints.load_weights(checkpoints.newest(folder.checkpoints), parts.policy)}

    def evaluate(self, extra: dict[str, Weights] | None = None) -> EvaluationReport:
        """Play the held-out tasks with every policy and compare the last to each other one.

        `extra` adds policies (controls, say) before the tuned one. Writes evaluations/held_out-*.json and the trajectories
        into the run.
        """
        policies = self.policies()
        tuned = policies.pop("tuned")
        policies = {**policies, **(extra or {}), "tuned": tuned}
        played = [self.trainer.evaluate_weights(weights, name) for name, weights in policies.items()]
        evaluations = [evaluation for evaluation, _ in played]
        comparisons = tuple(compare(before, evaluations[-1]) for before in evaluations[:-1])
        folder = self.trainer.folder
        assert folder is not None
        path = folder.next_evaluation_path()
        report = EvaluationReport(evaluations=tuple(evaluations), comparisons=comparisons, path=path)
        report.write([group for _, groups in played for group in groups])
        return report
