"""BaselineEvaluator: what a policy that is not trained here does on held-out tasks: an endpoint, or a script."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

from sparring import background
from sparring.build import Baseline, build_baseline
from sparring.config import load_config
from sparring.errors import DataError, UsageError
from sparring.evaluation.evaluation import Evaluation, EvaluationReport, evaluate
from sparring.ledger import Ledger
from sparring.tracking import Console, RunFolder
from sparring.types import Sampling, TrajectoryGroup


@final
class BaselineEvaluator:
    """Plays a recipe's held-out tasks, or a run's, with the endpoint or script that `[engine]` names.

        overrides = ["engine.type=openai", "engine.base_url=http://127.0.0.1:8000/v1", "engine.model=some-model"]
        report = BaselineEvaluator("recipes/quickstart", overrides=overrides).evaluate()
        report.evaluations[0].success.mean

    Tasks and settings are those of `MultiTurnRLEvaluator`. Of a recipe it makes a run folder; a run keeps the evaluation
    beside its own.
    """

    def __init__(
        self, recipe: str | Path, *, overrides: Sequence[str] = (), name: str | None = None, quiet: bool = False
    ) -> None:
        """`recipe` may be a run folder too. Raises ConfigError, and UsageError for an engine that is a model here."""
        path, changes = Path(recipe), list(overrides)
        self.folder = RunFolder(path) if RunFolder.is_run(path) else None
        if self.folder is not None:
            self.recipe, self.config = self.folder.recipe, self.folder.config(changes)
        else:
            self.recipe = path / "recipe.toml" if path.is_dir() else path
            self.config = load_config(self.recipe, changes)
        if self.config.is_trainable:
            raise UsageError(
                f"{path} plays a model of its own: train it and evaluate the run, or name another engine with "
                "engine.type=openai or engine.type=scripted."
            )
        self._name = name or self.config.run.name
        self._console = Console(quiet=quiet)

    def evaluate(self) -> EvaluationReport:
        """Play the held-out tasks; blocks. Writes evaluations/held_out-*.json and the trajectories into the run folder.

        Raises ServiceError when not one episode could be played.
        """
        is_new = self.folder is None
        folder = self.folder = self.folder or RunFolder.create(self.config, self.recipe, name=self._name)
        if is_new:
            folder.set_status("running")
        playing = background.submit(self._evaluate(folder))
        try:
            report = playing.result()
        except BaseException as error:
            playing.cancel()
            if is_new:
                folder.set_status("failed", reason=str(error) or type(error).__name__)
            raise
        if is_new:
            folder.set_status("completed")
        return report

    async def _evaluate(self, folder: RunFolder) -> EvaluationReport:
        async with Ledger(folder.path / "ledger.sqlite") as ledger:
            baseline = build_baseline(self.config, self.recipe.parent, ledger)
            try:
                evaluation, groups = await self._play(baseline)
            finally:
                await baseline.collector.aclose()
                await baseline.engine.close()
        report = EvaluationReport(evaluations=(evaluation,), comparisons=(), path=folder.next_evaluation_path())
        report.write(groups)
        return report

    async def _play(self, baseline: Baseline) -> tuple[Evaluation, list[TrajectoryGroup]]:
        section, name = self.config.evaluation, baseline.engine.fingerprint
        tasks = baseline.tasks.held_out[: section.eval_num_tasks]
        if not tasks:
            raise DataError("the held_out split is empty, so there is nothing to evaluate; set data.held_out.")
        with self._console.steps(f"held_out: {name}", len(tasks)) as progress:
            evaluation, groups = await evaluate(
                baseline.collector,
                tasks,
                name=name,
                split="held_out",
                label=f"{self.config.engine.type}@{time.time_ns()}",
                group_size=section.eval_group_size,
                sampling=Sampling(
                    temperature=section.eval_temperature, max_tokens=self.config.sampling.sampling_max_tokens
                ),
                success_threshold=section.success_threshold,
                pass_k_values=section.pass_k_values,
                in_waves=False,
                version=None,
                fingerprint=name,
                has_scorer=baseline.has_scorer,
                seconds=time.monotonic,
                prefix="eval",
                kind_of=baseline.kind_of,
                on_group=lambda _: progress({}),
            )
        self._console.evaluated(evaluation)
        return evaluation, groups
