"""A training of a few seconds, in a process of its own that may be killed; forked from one that has imported torch."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from sparring.runtime.faults import Fault, arm

RECIPE = Path(__file__).parent / "recipe" / "recipe.toml"

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        "sparring.trainer",
        "tests.faults.recipe.tiny",
        "sparring.engines.torch_engine",
        "sparring.engines.scripted",
        "renderers",
    ]
)


@dataclass(frozen=True)
class Training:
    """One run: where it is kept and what of the recipe is changed."""

    runs_dir: Path
    overrides: tuple[str, ...] = ()
    recipe: Path = RECIPE
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the process, which is not a child of this one."""

    @property
    def run(self) -> Path:
        return self.runs_dir / "run"

    def start(self, *faults: Fault, log: Path | None = None, resume: bool = False) -> ForkServerProcess:
        process = processes.Process(target=_train, args=(self, faults, log, resume))
        process.start()
        return process

    def over(self, *faults: Fault, log: Path | None = None, resume: bool = False) -> int | None:
        """Start and wait; the exit code, negative for a signal."""
        process = self.start(*faults, log=log, resume=resume)
        process.join(120)
        assert process.exitcode is not None, "the training does not end"
        return process.exitcode


def _train(training: Training, faults: tuple[Fault, ...], log: Path | None, resume: bool) -> None:
    from sparring.trainer import MultiTurnRLTrainer

    os.environ.update(training.variables)
    arm(faults, log=log)
    if resume:
        trainer = MultiTurnRLTrainer.attach(training.run)
    else:
        overrides = [f"run.runs_dir={training.runs_dir}", *training.overrides]
        trainer = MultiTurnRLTrainer(training.recipe, overrides=overrides, name="run", check=False, quiet=True)
    trainer.train(resume=resume)
    trainer.close()
